// IdlePolicy: whether a thread that finds nothing to do polls again, yields its core, or sleeps.
// Pure.
//
// A peer that runs answers within some polls. One that shares this core needs the core, and each
// poll holds it up; that somebody does share it shows in how long a yield takes. Then the core is
// given away after one poll (after none nobody would ever look at what has come). What others had
// of the time costs nobody anything, so that it doesn't bring sleep nearer: it takes longer to be
// woken than to get a core back.
#pragma once

namespace horoscale {

class IdlePolicy {
 public:
  static constexpr int kPolls = 50;  // before the first yield, where nobody shares the core
  // In seconds. Two switches between processes take longer than the first, a yield that finds
  // nobody else less.
  static constexpr double kSharedYield = 1.5e-6;
  static constexpr double kOwnTime = 50e-6;  // from the first yield until sleep
  static constexpr double kAllTime = 1e-3;   // the same with what others had

  // Something has moved, or the thread has slept.
  void Begin() {
    polls_ = 0;
    is_yielding_ = false;
  }

  // A poll has found nothing: whether the next one follows at once.
  bool PollsAgain() { return ++polls_ <= (is_shared_ ? 1 : kPolls); }

  // If not: whether the thread yields its core before the next poll, or sleeps.
  bool Yields(double now) {
    if (!is_yielding_) began_ = now;
    if (!is_yielding_) others_ = 0;
    is_yielding_ = true;
    return now - began_ - others_ < kOwnTime && now - began_ < kAllTime;
  }
  // How long that took.
  void OnYielded(double seconds) {
    is_shared_ = seconds > kSharedYield;
    if (is_shared_) others_ += seconds;
  }

 private:
  bool is_shared_ = false;  // as the last yield said
  bool is_yielding_ = false;
  int polls_ = 0;
  double began_ = 0;   // the first yield
  double others_ = 0;  // had so much since
};

}  // namespace horoscale
