// IdlePolicy: decides whether a thread without work polls again, yields its core, or sleeps. Pure.
//
// A running peer responds within a few polls. A peer that shares this core needs the core, and each
// poll delays it; the duration of yields shows that the core is shared. From then on, until many
// consecutive yields have found no other thread, the core is yielded after one poll (with no polls
// at all, nothing would ever be received). Time that others use does not count towards sleep,
// because waking up takes longer than getting a core back.
//
// If system calls are slow (in some virtual machines, on old processors), a yield that finds no
// other thread also takes long. Therefore the threshold depends on the shortest yield.
#pragma once

#include <algorithm>

namespace horoscale {

class IdlePolicy {
 public:
  static constexpr int kPolls = 50;  // before the first yield, if the core is not shared
  // In seconds. On most machines, two context switches take longer, and a yield that finds no other
  // thread is shorter.
  static constexpr double kSharedYield = 1.5e-6;
  // On other machines: this multiple of the shortest of this many yields. A yield that finds no
  // other thread never takes longer than the last constant; if all yields do, the core has been
  // shared all the time.
  static constexpr double kSharedToShortest = 2;
  static constexpr int kSamples = 256;
  static constexpr double kLongestOwnYield = 4e-6;
  // After this many consecutive yields that found no other thread, the core counts as unshared. A
  // single one is not enough, because the scheduler may consider the other thread's share used up.
  static constexpr int kQuickYields = 32;
  static constexpr double kOwnTime = 50e-6;  // time from the first yield to sleep
  static constexpr double kAllTime = 1e-3;   // the same including others' time

  // There was progress, or the thread has slept.
  void Begin() {
    polls_ = 0;
    is_yielding_ = false;
  }

  // A poll has found nothing: returns whether to poll again immediately.
  bool PollsAgain() { return ++polls_ <= (quick_ < kQuickYields ? 1 : kPolls); }

  // If not: returns whether to yield before the next poll; otherwise the thread sleeps.
  bool Yields(double now) {
    if (!is_yielding_) began_ = now;
    if (!is_yielding_) others_ = 0;
    is_yielding_ = true;
    return now - began_ - others_ < kOwnTime && now - began_ < kAllTime;
  }
  // Reports the duration of a yield.
  void OnYielded(double seconds) {
    shortest_ = std::min(shortest_, seconds);
    samples_ = std::min(samples_ + 1, kSamples);
    const bool is_long = seconds > SharedYield();
    quick_ = is_long ? 0 : std::min(quick_ + 1, kQuickYields);
    if (is_long) others_ += seconds;
  }

 private:
  double SharedYield() const {
    if (samples_ < kSamples || shortest_ > kLongestOwnYield) return kSharedYield;
    return std::max(kSharedYield, kSharedToShortest * shortest_);
  }

  int quick_ = kQuickYields;  // consecutive yields that found no other thread
  bool is_yielding_ = false;
  int polls_ = 0;
  double began_ = 0;     // the first yield
  double others_ = 0;    // time that others have used since
  double shortest_ = 1;  // of all yields
  int samples_ = 0;
};

}  // namespace horoscale
