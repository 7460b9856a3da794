// StreamChoice: selects how many of a link's data streams are used. Several streams are faster if a
// single stream is limited, for example by a core or by a cloud provider. On a slow network one
// stream suffices and keeps chunks in order, so that none shares the bandwidth with a later one. If
// one stream is as fast as memory, one suffices too, because the limit is this rank's thread, and
// several streams need more system calls. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace horoscale {

class StreamChoice {
 public:
  // `streams` is the number of streams. `always_all`: use all of them, however fast they are.
  StreamChoice(size_t streams, bool always_all)
      : streams_(streams), fixed_(always_all || streams == 1), used_(streams) {}

  size_t used() const { return used_; }

  // Counts sent bytes; returns true if the streams' rates should be checked again.
  bool IsDue(size_t bytes) {
    bytes_ += bytes;
    if (fixed_ || bytes_ < kLookBytes) return false;
    bytes_ = 0;
    return true;
  }

  // Updates the choice from the rates of the used streams, in bytes per second; 0 if unknown.
  void OnRates(std::span<const double> rates) {
    const double fastest = *std::max_element(rates.begin(), rates.end());
    if (used_ > 1) {
      if (fastest > 0 && (fastest < kSlow || fastest > kLikeMemory)) UseOne();
    } else if (pause_ > 0) {
      --pause_;
    } else if (fastest > kFast && fastest < kLikeMemory) {
      used_ = streams_;
    }
  }

 private:
  static constexpr size_t kLookBytes = 1 << 20;
  // One core achieves several times this rate with one stream.
  static constexpr double kSlow = 200e6;
  static constexpr double kFast = 300e6;
  // About the rate at which one thread copies into the kernel and out of it concurrently.
  static constexpr double kLikeMemory = 1.5e9;
  static constexpr size_t kLongestPause = 1024;

  // The rate of one stream does not predict the rate of several, so this must be tried. If several
  // are not faster, the tries become rarer.
  void UseOne() {
    used_ = 1;
    pause_ = next_pause_;
    next_pause_ = std::clamp<size_t>(2 * next_pause_, 1, kLongestPause);
  }

  size_t streams_;
  bool fixed_;
  size_t used_;
  size_t bytes_ = 0;  // since the last check
  size_t pause_ = 0;  // number of checks until all streams may be tried again
  size_t next_pause_ = 0;
};

}  // namespace horoscale
