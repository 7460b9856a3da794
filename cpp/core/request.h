// What one rank asks for: the unit that is negotiated, cached and scheduled.
//
// A grouped operation is one Request with several tensors: it is negotiated in one piece, which is
// what makes it all-or-nothing. An ungrouped operation is a group of one.
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

// All of a signature but its tensors: what the units of one bucket have in common. A new field is
// declared here and named in FieldsOf().
struct Terms {
  OpKind kind = OpKind::kAllreduce;
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = -1;  // global rank, of kinds with HasRoot()
  double prescale = 1.0;
  double postscale = 1.0;
  Encoding encoding;            // of sums of floating-point numbers
  bool on_device = false;       // CUDA tensors (all of a request are, or none)
  std::vector<int> ranks;       // add_process_set: global ranks in the set's order
  bool distinct = false;        // add_process_set: also if there is a set of these ranks
  int target_set = -1;          // remove_process_set: the set's id
  std::vector<int64_t> splits;  // reducescatter: rows for each member; empty: evenly
  int adasum_start_level = 1;   // Adasum: ranks that are averaged first

  auto operator<=>(const Terms&) const = default;
};

// References to all fields of Terms, in their order on the wire. Whatever treats every field goes
// through this list: encoding, decoding, hashing, and what a mismatch says. It doesn't compile if a
// field is missing.
template <typename AnyTerms>
  requires std::derived_from<AnyTerms, Terms>
constexpr auto FieldsOf(AnyTerms& of) {
  std::conditional_t<std::is_const_v<AnyTerms>, const Terms, Terms>& terms = of;
  auto& [kind, reduce_op, root, prescale, postscale, encoding, on_device, ranks, distinct,
         target_set, splits, adasum_start_level] = terms;
  return std::tie(kind, reduce_op, root, prescale, postscale, encoding, on_device, ranks, distinct,
                  target_set, splits, adasum_start_level);
}

// Everything that the members of a set must agree on. Two requests of one key with different
// signatures are a mismatch, reported to every member with what each rank said.
struct Signature : Terms {
  std::vector<TensorSpec> tensors;

  int64_t TotalBytes() const;
  bool operator==(const Signature&) const = default;
};
size_t Hash(const Signature& signature);

// How messages and the timeline call a unit: the name, or "allreduce.unnamed.7".
std::string DisplayName(std::string_view name, OpKind kind, uint64_t index);

struct Request {
  // The key within a process set is the name, or, for an unnamed operation (empty name), the
  // position of the call among the unnamed calls of the set.
  std::string name;
  uint64_t index = 0;  // 0 for named requests, otherwise counts from 1
  int priority = 0;    // higher is more urgent; the coordinator's own counts
  // What this rank brings, where the signature leaves it open (a free first dimension); else 0. A
  // hint for the scheduler, said by the coordinator's own member alone: it is not sent, not agreed
  // on, and no part of what a slot stands for.
  int64_t own_bytes = 0;
  Signature signature;

  std::string DisplayName() const;
  bool operator==(const Request&) const = default;
};

}  // namespace horoscale
