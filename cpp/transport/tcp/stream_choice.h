// How many of a link's data streams are used. Several carry more where one is limited: by a core,
// by a cloud. Where the network is slow one does, and keeps the chunks in order, so that none
// shares the network with a later one. Where one is as fast as memory one does as well: what limits
// it is this rank's own thread, which several cost more system calls. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace horoscale {

class StreamChoice {
 public:
  // `streams`: that there are. `always_all`: as asked for, however fast they are.
  StreamChoice(size_t streams, bool always_all)
      : streams_(streams), fixed_(always_all || streams == 1), used_(streams) {}

  size_t used() const { return used_; }

  // So many bytes are sent; true if that is enough to look at the streams' rates again.
  bool IsDue(size_t bytes) {
    bytes_ += bytes;
    if (fixed_ || bytes_ < kLookBytes) return false;
    bytes_ = 0;
    return true;
  }

  // What each stream in use carries, in bytes a second; 0 if unknown.
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
  // One core does several times as much with one stream.
  static constexpr double kSlow = 200e6;
  static constexpr double kFast = 300e6;
  // About what a thread copies into the kernel and out of it at the same time.
  static constexpr double kLikeMemory = 1.5e9;
  static constexpr size_t kLongestPause = 1024;

  // What one stream carries doesn't tell what each of several would: that has to be tried. Where
  // they share what one of them carries alone, the tries are in vain, and become rare.
  void UseOne() {
    used_ = 1;
    pause_ = next_pause_;
    next_pause_ = std::clamp<size_t>(2 * next_pause_, 1, kLongestPause);
  }

  size_t streams_;
  bool fixed_;
  size_t used_;
  size_t bytes_ = 0;  // since the last look
  size_t pause_ = 0;  // so many looks until all streams may be tried again
  size_t next_pause_ = 0;
};

}  // namespace horoscale
