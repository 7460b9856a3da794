// IdlePolicy: whether a thread that finds nothing to do polls again, yields its core, or sleeps.
// Pure.
//
// A peer that runs answers within some polls. One that shares this core needs the core, and each
// poll holds it up; that somebody does share it shows in how long a yield takes. From then on,
// until many yields in a row have found nobody, the core is given away after one poll (after none
// nobody would ever look at what has come). What others had of the time costs nobody anything, so
// that it doesn't bring sleep nearer: it takes longer to be woken than to get a core back.
//
// Where a system call is slow (some virtual machines, old processors) a yield that finds nobody
// takes long too. So what the shortest of all has taken says how long is long.
#pragma once

#include <algorithm>

namespace horoscale {

class IdlePolicy {
 public:
  static constexpr int kPolls = 50;  // before the first yield, where nobody shares the core
  // In seconds. Two switches between processes take longer than the first, a yield that finds
  // nobody else less, on most machines.
  static constexpr double kSharedYield = 1.5e-6;
  // On the others: so many times the shortest yield, of so many. None that finds nobody takes
  // longer than the last: where all do, the core has been shared all the time.
  static constexpr double kSharedToShortest = 2;
  static constexpr int kSamples = 256;
  static constexpr double kLongestOwnYield = 4e-6;
  // After so many yields in a row that found nobody the core is the thread's own again: a yield
  // finds nobody also where the system thinks that the other has had its share.
  static constexpr int kQuickYields = 32;
  static constexpr double kOwnTime = 50e-6;  // from the first yield until sleep
  static constexpr double kAllTime = 1e-3;   // the same with what others had

  // Something has moved, or the thread has slept.
  void Begin() {
    polls_ = 0;
    is_yielding_ = false;
  }

  // A poll has found nothing: whether the next one follows at once.
  bool PollsAgain() { return ++polls_ <= (quick_ < kQuickYields ? 1 : kPolls); }

  // If not: whether the thread yields its core before the next poll, or sleeps.
  bool Yields(double now) {
    if (!is_yielding_) began_ = now;
    if (!is_yielding_) others_ = 0;
    is_yielding_ = true;
    return now - began_ - others_ < kOwnTime && now - began_ < kAllTime;
  }
  // How long that took.
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

  int quick_ = kQuickYields;  // yields in a row that found nobody
  bool is_yielding_ = false;
  int polls_ = 0;
  double began_ = 0;     // the first yield
  double others_ = 0;    // had so much since
  double shortest_ = 1;  // of all yields
  int samples_ = 0;
};

}  // namespace horoscale
