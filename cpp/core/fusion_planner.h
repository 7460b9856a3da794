// FusionPlanner: which units may share a bucket, and how units are divided into parts. Pure
// functions of signatures.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/limits.h"
#include "core/negotiator.h"
#include "core/request.h"

namespace horoscale {

// Units of equal class may share a bucket.
struct FusionClass {
  Terms terms;
  DataType dtype = DataType::kFloat32;
  std::vector<uint32_t> absent;
  uint64_t alone = 0;  // a unique nonzero number for a unit that never shares a bucket
  auto operator<=>(const FusionClass&) const = default;
};

// All of a unit, or a range of elements of one of its tensors.
struct Part {
  UnitId unit = 0;
  bool whole = true;
  uint32_t tensor = 0;
  int64_t begin = 0;
  int64_t count = 0;
  int64_t bytes = 0;
  bool is_last = true;  // whether it is the last part of the unit
};

struct Bucket {
  std::vector<Part> parts;
  int64_t bytes = 0;

  void Add(const Part& part) {
    parts.push_back(part);
    bytes += part.bytes;
  }
};

struct FusionLimits {
  int64_t bucket_bytes = 0;
  int64_t partition_bytes = 0;  // 0: tensors are never split
};

class FusionPlanner {
 public:
  explicit FusionPlanner(FusionLimits limits) : limits_(limits) {}
  // Two buckets fit into the credit, so that members are not idle while the next one is in flight.
  static FusionPlanner Of(const Limits& limits) {
    return FusionPlanner(
        {.bucket_bytes = std::min(limits.fusion_threshold_bytes, limits.credit_bytes / 2),
         .partition_bytes = limits.partition_bytes});
  }

  const FusionLimits& limits() const { return limits_; }

  enum class Form : uint8_t {
    kWhole,    // is not divided; goes into one bucket, alone or with others
    kCut,      // one tensor that is split into partitions, which are scheduled separately
    kDivided,  // fills its own buckets
  };
  Form FormOf(const Signature& signature) const;
  bool FitsOneBucket(const Signature& signature) const;
  bool IsCut(const Signature& signature) const;
  FusionClass ClassOf(const Signature& signature, std::vector<uint32_t> absent,
                      uint64_t order) const;

  // The part of a split tensor that begins at this element.
  Part Cut(UnitId unit, const Signature& signature, uint32_t tensor, int64_t begin) const;
  // The buckets of a unit that does not fit into one: tensors of the same dtype together, split
  // where possible.
  std::vector<Bucket> Divide(UnitId unit, const Signature& signature) const;

 private:
  FusionLimits limits_;
};

}  // namespace horoscale
