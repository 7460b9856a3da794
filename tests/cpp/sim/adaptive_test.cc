// A training run whose network changes: the encodings chosen for its adaptive gradients, as all
// members see them. Clock, network and errors are simulated; coordinator and members are real.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/codec.h"
#include "unit/core/core_cluster.h"

namespace horoscale::sim {
namespace {

constexpr int kTensors = 16;
constexpr int64_t kElements = 1 << 18;
constexpr double kForward = 0.1;  // seconds
constexpr double kBackward = 0.2;
constexpr double kLatency = 0.2e-3;
constexpr double kCodingPerSecond = 2e9;

class Training {
 public:
  Training(uint32_t members, double most_error, bool spans_hosts)
      : cluster_(OptionsOf(members, spans_hosts)) {
    signature_ = Allreduce({kElements});
    signature_.encoding = {EncodingKind::kAdaptive, static_cast<uint16_t>(most_error * 1e4)};
  }

  void SetRate(double megabits) { bytes_per_second_ = megabits * 1e6 / 8; }

  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }

  // Seconds of the last step.
  double exposed() const { return exposed_; }
  double seconds() const { return seconds_; }
  // The number of tensors per encoding.
  std::map<std::string, int> Chosen() const {
    std::map<std::string, int> chosen;
    for (const auto& [_, encoding] : encodings_) ++chosen[std::string(Name(encoding.kind))];
    return chosen;
  }
  int changes() const { return changes_; }

  std::map<EncodingKind, double> errors = {
      {EncodingKind::kInt8, 0.006}, {EncodingKind::kInt4, 0.1}, {EncodingKind::kOneBit, 1.2}};
  double worst_member_errs = 1;  // factor of the last member's losses
  bool calls_back = false;       // instead of being blocked in waits

 private:
  struct Running {
    PlanEntry entry;
    EncodingChooser::Bucket bucket;
    double end = 0;
  };

  static CoordinatorOptions OptionsOf(uint32_t members, bool spans_hosts) {
    CoordinatorOptions options = CoreCluster::Options(members);
    options.spans_hosts = spans_hosts;
    options.limits.fusion_threshold_bytes = 2 << 20;
    return options;
  }

  void Step() {
    const double begin = cluster_.now;
    exposed_ = 0;
    for (int i = 0; i < kTensors; ++i) {
      const double ready = begin + kForward + kBackward * (i + 1) / kTensors;
      RunUntil(ready);
      cluster_.now = ready;
      cluster_.SubmitAll(Named("gradient " + std::to_string(i), signature_, i));
      cluster_.DeliverAll();
      Publish();
    }
    blocked_at_ = cluster_.now;
    RunUntil(std::numeric_limits<double>::infinity());
    blocked_at_ = std::numeric_limits<double>::infinity();
    seconds_ = cluster_.now - begin;
  }

  void Publish() {
    for (PlanEntry& entry : cluster_.coordinator().TakePlan(cluster_.now)) {
      waiting_.push_back({Decoded(entry), {}, 0});
    }
  }

  static PlanEntry Decoded(const PlanEntry& entry) {
    const auto decoded = DecodePlanEntry(Encode(entry));
    EXPECT_EQ(*decoded, entry);
    return *decoded;
  }

  void RunUntil(double time) {
    for (; !waiting_.empty(); waiting_.pop_front()) {
      Running& first = waiting_.front();
      if (first.end == 0) Start(first);
      if (first.end > time) return;
      cluster_.now = first.end;
      const double exposed =
          std::max(0.0, first.end - std::max(blocked_at_, first.end - first.bucket.seconds));
      exposed_ += exposed;
      first.bucket.exposed_seconds = calls_back ? 0 : exposed;
      first.bucket.ended_at = first.end;
      first.bucket.calls_back = calls_back;
      cluster_.coordinator().OnBucket(first.bucket);
      cluster_.coordinator().OnExecuted(first.entry.sequence);
      Publish();
    }
  }

  // All members apply the entry with the same result.
  void Start(Running& running) {
    const Action action = *cluster_.member(0).Apply(running.entry);
    for (uint32_t i = 1; i < cluster_.size(); ++i) {
      const Action others = *cluster_.member(i).Apply(running.entry);
      EXPECT_EQ(others.common.encoding, action.common.encoding);
    }
    const Encoding encoding = action.common.encoding;
    EXPECT_FALSE(encoding.IsAdaptive());
    EncodingChooser::Bucket& bucket = running.bucket;
    bucket.encoding = encoding;
    for (const Piece& piece : action.pieces) bucket.bytes += piece.count * 4;
    const auto elements = static_cast<double>(bucket.bytes) / 4;
    const double sent = elements * encoding.BytesPerElement(DataType::kFloat32);
    if (encoding.IsLossy()) {
      bucket.coding_seconds = static_cast<double>(bucket.bytes) / kCodingPerSecond;
    }
    bucket.seconds = kLatency + sent / bytes_per_second_ + bucket.coding_seconds;
    running.end = cluster_.now + bucket.seconds;
    for (const Token token : action.finished) OnFinished(token, encoding);
  }

  void OnFinished(Token token, const Encoding& encoding) {
    // Tokens are assigned in submission order, member by member.
    const auto size = static_cast<Token>(cluster_.size());
    const std::string name = "gradient " + std::to_string((token - 1) / size % kTensors);
    const auto before = encodings_.find(name);
    if (before != encodings_.end() && before->second != encoding) ++changes_;
    encodings_[name] = encoding;
    if (!encoding.IsLossy()) return;
    for (uint32_t i = 0; i < cluster_.size(); ++i) {
      const double factor = i + 1 == cluster_.size() ? worst_member_errs : 1;
      cluster_.member(i).NoteError(name, encoding, factor * errors[encoding.kind]);
    }
  }

  CoreCluster cluster_;
  Signature signature_;
  std::deque<Running> waiting_;  // published; the first one may be in progress
  double bytes_per_second_ = 0;
  double blocked_at_ = std::numeric_limits<double>::infinity();
  double exposed_ = 0;
  double seconds_ = 0;
  std::map<std::string, Encoding> encodings_;
  int changes_ = 0;
};

using Chosen = std::map<std::string, int>;
const Chosen kNothing = {{"none", kTensors}};

void FollowTheNetwork(Training& training) {
  training.SetRate(1000);
  training.Steps(20);
  EXPECT_EQ(training.Chosen(), kNothing);
  EXPECT_EQ(training.changes(), 0);

  training.SetRate(100);
  training.Steps(1);
  EXPECT_GT(training.exposed(), 0.5 * training.seconds());
  training.Steps(19);
  // Just enough is compressed to hide it: without the 4 bits it would not be hidden.
  EXPECT_LT(training.exposed(), 0.06 * training.seconds());
  EXPECT_EQ(training.Chosen().count("none"), 0u);
  EXPECT_GT(training.Chosen()["int4"], 0);
  const int changes = training.changes();
  training.Steps(50);
  EXPECT_EQ(training.changes(), changes) << "what hides it stays";

  training.SetRate(1000);
  training.Steps(20);
  EXPECT_EQ(training.Chosen(), kNothing);
}

TEST(AdaptiveTraining, FollowsTheNetworkWithin20Steps) {
  Training training(3, 0.25, true);
  FollowTheNetwork(training);
}

TEST(AdaptiveTraining, AlsoIfTheProgramIsCalledBack) {
  Training training(3, 0.25, true);
  training.calls_back = true;
  FollowTheNetwork(training);
}

// On a network whose rate varies, what is hidden in some steps by a milder choice is not in others.
TEST(AdaptiveTraining, AChoiceIsSeldomTriedInVain) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> rate(20, 60);
  Training training(2, 6, true);
  training.errors[EncodingKind::kTopK] = 5;
  int before = 0;
  for (int step = 0; step < 350; ++step) {
    if (step == 50) before = training.changes();
    training.SetRate(rate(random));
    training.Steps(1);
  }
  EXPECT_LE(training.changes() - before, 2 * kTensors);
}

TEST(AdaptiveTraining, AFastNetworkAndOneHostCompressNothing) {
  Training fast(2, 5, true);
  fast.SetRate(10'000);
  fast.Steps(40);
  EXPECT_EQ(fast.Chosen(), kNothing);
  EXPECT_EQ(fast.changes(), 0);

  Training one_host(2, 5, false);
  one_host.SetRate(10);
  one_host.Steps(20);
  EXPECT_EQ(one_host.Chosen(), kNothing);
  EXPECT_EQ(one_host.changes(), 0);
}

TEST(AdaptiveTraining, NoMoreThanNeeded) {
  Training training(2, 5, true);
  training.SetRate(400);  // a third more than can be hidden
  training.Steps(40);
  EXPECT_LT(training.exposed(), 0.06 * training.seconds());
  EXPECT_GT(training.Chosen()["none"], 0);
  EXPECT_GT(training.Chosen()["bfloat16"], 0);
}

TEST(AdaptiveTraining, TheBoundHolds) {
  Training training(4, 0.1, true);
  training.SetRate(50);
  training.worst_member_errs = 1.5;  // then 4 bits would lose 0.15
  training.Steps(40);
  EXPECT_EQ(training.Chosen(), (Chosen{{"int8", kTensors}}));
  // From now on one member loses more.
  training.errors[EncodingKind::kInt8] = 0.09;
  training.Steps(5);
  EXPECT_EQ(training.Chosen(), (Chosen{{"bfloat16", kTensors}}));
}

}  // namespace
}  // namespace horoscale::sim
