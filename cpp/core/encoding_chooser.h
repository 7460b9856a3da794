// The encodings that a coordinator chooses for the adaptive operations of its set, step by step.
//
// Measured are the buckets: what they carried, what they took, and for how long the program was
// blocked meanwhile, or for how long they followed the last operation of their step (StepTail).
// Where that is more than a small part of the steps, the communication is not hidden, and
// ChooseLevels() says what would hide it. A choice stays until it is seen for several steps that it
// compresses too little or too much. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/adaptive_encoding.h"
#include "core/bucket_latency.h"
#include "core/patience.h"
#include "core/request.h"
#include "core/step_tail.h"

namespace horoscale {

// The median of the last few values.
class RecentMedian {
 public:
  void Add(double value);
  // 0: there is none.
  double Get() const;

 private:
  std::array<double, 5> values_{};
  size_t count_ = 0;
};

class EncodingChooser {
 public:
  // A bucket of the set that was executed between hosts.
  struct Bucket {
    int64_t bytes = 0;  // of the tensors
    DataType dtype = DataType::kFloat32;
    Encoding encoding;
    double seconds = 0;
    double coding_seconds = 0;   // of these, in which this rank encoded and decoded
    double exposed_seconds = 0;  // of these, in which the program was blocked
    double ended_at = 0;
    bool calls_back = false;  // the program is called back, so exposed_seconds says nothing
  };

  // The encoding of an operation has changed.
  struct Change {
    std::string name;
    Encoding encoding;
    std::string why;
  };

  // `keeps_changes`: whether someone calls TakeChanges().
  explicit EncodingChooser(bool keeps_changes = false) : keeps_changes_(keeps_changes) {}

  // What a named operation, whose encoding is adaptive, is sent in. It is ready now.
  Encoding Choose(std::string_view name, const Signature& signature, int priority, double now);
  // Whether there was one: else nothing has to be measured.
  bool IsUsed() const { return !tensors_.empty(); }

  // The relative error of an operation on one member. The worst one counts.
  void OnError(std::string_view name, uint32_t member, const Encoding& encoding, double error);
  void OnBucket(const Bucket& bucket);
  // A step has ended, which took this long.
  void OnStep(double seconds);

  // What was measured.
  NetworkState Network() const;
  // The changes since the last call.
  std::vector<Change> TakeChanges();

 private:
  struct Tensor {
    AdaptiveTensor about;
    size_t level = 0;
    uint64_t step = 0;                     // when it came last
    uint64_t round = 0;                    // the same, for tail_
    std::map<uint32_t, double> by_member;  // the last errors at this level
  };
  // Sums over the buckets of the step.
  struct Measured {
    double seconds = 0;
    double exposed = 0;
    double large_bytes = 0;  // sent in buckets that tell of the bandwidth
    double large_seconds = 0;
  };

  void SetLevel(Tensor& tensor, size_t level);
  void NoteChange(std::string_view name, const Tensor& tensor, std::string_view why);
  void Replan(double seconds);
  std::string Describe(double seconds, double exposed) const;
  void Forget();

  std::map<std::string, Tensor, std::less<>> tensors_;
  uint64_t step_ = 1;
  Measured measured_;
  uint64_t round_ = 1;  // of operations without repetition
  StepTail tail_;
  RecentMedian bandwidth_;
  RecentMedian latency_;
  BucketLatency fitted_latency_;
  RecentMedian coding_;
  double hidden_share_ =
      0;                // of the time that is computed: how long communication was hidden by it
  int too_little_ = 0;  // for so many steps
  int too_much_ = 0;
  Patience patience_;
  bool keeps_changes_;
  std::vector<Change> changes_;
};

}  // namespace horoscale
