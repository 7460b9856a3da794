// What adaptive operations of a set were sent in on this rank, and what that lost: for its
// coordinator, the metrics and the timeline.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "backends/fused_operation.h"
#include "base/encoding.h"
#include "core/member.h"
#include "runtime/operation.h"
#include "runtime/pending_operations.h"

namespace horoscale {

struct AdaptedTensor {
  Encoding encoding;     // the last one
  uint64_t buckets = 0;  // in which it was sent
  uint64_t changes = 0;  // of the encoding
  uint64_t bytes_before = 0;
  uint64_t bytes_after = 0;
  double relative_error = 0;  // of its last operation, where this rank keeps residuals of it
};

class AdaptedTensors {
 public:
  // More names are not kept.
  static constexpr size_t kMost = 4096;

  // A bucket was executed between hosts.
  void OnBucket(const Action& action, const FusedOperation& fused,
                const PendingOperations& pending);
  // An operation has ended; its relative error where this rank knows it, else a negative number.
  double OnEnded(const Operation& operation);

  const std::map<std::string, AdaptedTensor>& by_name() const { return by_name_; }

 private:
  AdaptedTensor* Find(const std::string& name);

  std::map<std::string, AdaptedTensor> by_name_;
};

}  // namespace horoscale
