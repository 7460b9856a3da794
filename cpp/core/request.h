// Request: one rank's request for an operation, the unit that is negotiated, cached and scheduled.
//
// A grouped operation is one Request with several tensors: it is negotiated as a whole, which makes
// it all-or-nothing. An ungrouped operation is a group of one.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/encoding.h"
#include "base/types.h"

namespace horoscale {

struct TensorSpec {
  DataType dtype = DataType::kFloat32;
  // For kinds with HasFreeFirstDimension() shape[0] is kFreeDimension.
  std::vector<int64_t> shape;

  int64_t NumElements() const;  // a free dimension counts as 1
  bool operator==(const TensorSpec&) const = default;
};
inline constexpr int64_t kFreeDimension = -1;
inline constexpr int kDeviceCpu = -1;

// A signature without its tensors: the common properties of the units in one bucket. New fields
// must be declared here and listed in FieldsOf().
struct Terms {
  OpKind kind = OpKind::kAllreduce;
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = -1;  // global rank, of kinds with HasRoot()
  double prescale = 1.0;
  double postscale = 1.0;
  Encoding encoding;            // for sums of floating-point numbers
  bool on_device = false;       // CUDA tensors (all tensors of a request, or none)
  std::vector<int> ranks;       // add_process_set: global ranks in the set's order
  bool distinct = false;        // add_process_set: even if a set of these ranks exists
  int target_set = -1;          // remove_process_set: the set's id
  std::vector<int64_t> splits;  // reducescatter: rows per member; empty: evenly
  int adasum_start_level = 1;   // Adasum: size of the groups of ranks that are averaged first

  auto operator<=>(const Terms&) const = default;
};

// References to all fields of Terms, in wire order. All code that handles every field uses this
// list: encoding, decoding, hashing, and mismatch messages. It does not compile if a field is
// missing.
template <typename AnyTerms>
  requires std::derived_from<AnyTerms, Terms>
constexpr auto FieldsOf(AnyTerms& of) {
  std::conditional_t<std::is_const_v<AnyTerms>, const Terms, Terms>& terms = of;
  auto& [kind, reduce_op, root, prescale, postscale, encoding, on_device, ranks, distinct,
         target_set, splits, adasum_start_level] = terms;
  return std::tie(kind, reduce_op, root, prescale, postscale, encoding, on_device, ranks, distinct,
                  target_set, splits, adasum_start_level);
}

// Everything that the members of a set must agree on. Requests with the same key and different
// signatures are a mismatch, which is reported to every member with each rank's request.
struct Signature : Terms {
  std::vector<TensorSpec> tensors;

  int64_t TotalBytes() const;
  bool operator==(const Signature&) const = default;
};
size_t Hash(const Signature& signature);

// The name of a unit in messages and in the timeline: its name, or "allreduce.unnamed.7".
std::string DisplayName(std::string_view name, OpKind kind, uint64_t index);

struct Request {
  // The key within a process set is the name or, for an unnamed operation (empty name), the index
  // of the call among the unnamed calls of the set.
  std::string name;
  uint64_t index = 0;  // 0 for named requests, otherwise starting at 1
  int priority = 0;    // higher is more urgent; the coordinator's own counts
  // The size of this rank's input, if the signature does not determine it (a free first dimension);
  // otherwise 0. A hint for the scheduler, set only by the coordinator's own member: it is not
  // sent, not negotiated, and not part of a slot's content.
  int64_t own_bytes = 0;
  Signature signature;

  std::string DisplayName() const;
  bool operator==(const Request&) const = default;
};

}  // namespace horoscale
