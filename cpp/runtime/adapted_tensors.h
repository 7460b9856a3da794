// What adaptive operations of a set were sent in on this rank, and what that lost: for its
// coordinator, the metrics and the timeline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "backends/fused_operation.h"
#include "base/encoding.h"
#include "core/member.h"
#include "runtime/operation.h"
#include "runtime/pending_operations.h"

namespace horoscale {

struct AdaptedTensor {
  const std::string* name;  // owned by AdaptedTensors
  Encoding encoding;        // the last one
  uint32_t changes = 0;     // of the encoding
  uint64_t bytes_before = 0;
  uint64_t bytes_after = 0;
  double relative_error = 0;  // of its last operation, where this rank keeps residuals of it
};

// The runtime's thread makes copies whenever metrics are requested. A copy has its own numbers and
// shares the names. Other threads may read a copy, but must not count in it, while the original
// continues to count.
class AdaptedTensors {
 public:
  // More names are not kept.
  static constexpr size_t kMost = 4096;

  // A bucket was executed between hosts.
  void OnBucket(const Action& action, const FusedOperation& fused,
                const PendingOperations& pending);
  // An operation has ended; its relative error where this rank knows it, else a negative number.
  double OnEnded(const Operation& operation);
  // A part of a tensor was sent; without a name nothing is counted.
  void Count(const std::string& name, const Encoding& encoding, uint64_t bytes_before,
             uint64_t bytes_after);

  // In the order of their first operations.
  const std::vector<AdaptedTensor>& tensors() const { return tensors_; }

 private:
  std::vector<AdaptedTensor> tensors_;
  // Positions in tensors_. Only the original looks up and inserts; copies keep the names alive,
  // whose addresses stay.
  std::shared_ptr<std::unordered_map<std::string, size_t>> positions_ =
      std::make_shared<std::unordered_map<std::string, size_t>>();
};

}  // namespace horoscale
