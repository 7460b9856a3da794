// Compares the Scheduler with an obviously correct model: for any arrival order, both give the same
// buckets.
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/codec.h"
#include "core/scheduler.h"
#include "core_cluster.h"

namespace horoscale {
namespace {

using ReadyUnit = Scheduler::ReadyUnit;
using Form = FusionPlanner::Form;

// All units in one list, searched from its beginning for each.
class SimpleScheduler {
 public:
  SimpleScheduler(FusionPlanner planner, int64_t credit, size_t entries_ahead)
      : planner_(planner), credit_(credit), entries_ahead_(entries_ahead) {}

  void SetLimits(FusionPlanner planner, int64_t credit) {
    planner_ = planner;
    credit_ = credit;
  }

  void Push(const ReadyUnit& unit) {
    ++last_order_;
    waiting_.push_back({unit, planner_.FormOf(*unit.signature),
                        planner_.ClassOf(*unit.signature, unit.absent, last_order_)});
  }

  std::vector<Bucket> Take() {
    if (waiting_.empty() || !InCredit(NextPart(*Next()).bytes)) return {};
    const auto first = Next();
    if (first->form == Form::kDivided) {
      std::vector<Bucket> buckets = planner_.Divide(first->ready.unit, *first->ready.signature);
      waiting_.erase(first);
      return buckets;
    }
    const FusionClass fusion_class = first->fusion_class;
    int priority = first->ready.priority;
    Bucket bucket;
    size_t message_bytes = 0;
    int64_t limit = planner_.limits().bucket_bytes;
    if (!outstanding_.empty()) limit = std::min(limit, credit_ - Outstanding());
    while (TakeAll(priority, fusion_class, limit, message_bytes, bucket)) {
      if (waiting_.empty() || fusion_class.alone != 0) break;
      if (Next()->ready.priority == priority) break;
      priority = Next()->ready.priority;
      if (planner_.limits().partition_bytes > 0) {
        limit = std::min(limit, planner_.limits().partition_bytes);
      }
    }
    return {bucket};
  }

  void Published(uint64_t sequence, int64_t bytes) { outstanding_.emplace_back(sequence, bytes); }
  void Executed(uint64_t sequence) {
    std::erase_if(outstanding_, [&](const auto& entry) { return entry.first == sequence; });
  }

 private:
  struct Waiting {
    ReadyUnit ready;
    Form form;
    FusionClass fusion_class;
    int64_t begin = 0;
  };

  std::vector<Waiting>::iterator Next() {
    return std::max_element(
        waiting_.begin(), waiting_.end(),
        [](const Waiting& a, const Waiting& b) { return a.ready.priority < b.ready.priority; });
  }
  Part NextPart(const Waiting& waiting) const {
    if (waiting.form == Form::kCut) {
      return planner_.Cut(waiting.ready.unit, *waiting.ready.signature, 0, waiting.begin);
    }
    return {.unit = waiting.ready.unit, .bytes = waiting.ready.bytes};
  }
  // Of one class and priority, oldest first, until one does not fit; then returns false.
  bool TakeAll(int priority, const FusionClass& fusion_class, int64_t limit, size_t& message_bytes,
               Bucket& bucket) {
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->ready.priority != priority || it->fusion_class != fusion_class) {
        ++it;
        continue;
      }
      const Part part = NextPart(*it);
      const bool fits = bucket.bytes + part.bytes <= limit && bucket.parts.size() < kMaxPlanItems &&
                        message_bytes + it->ready.message_bytes <= kMaxMessageBytes / 4;
      if (!bucket.parts.empty() && !fits) return false;
      bucket.Add(part);
      message_bytes += it->ready.message_bytes;
      it->begin += part.count;
      if (part.is_last) it = waiting_.erase(it);
    }
    return true;
  }
  int64_t Outstanding() const {
    int64_t bytes = 0;
    for (const auto& entry : outstanding_) bytes += entry.second;
    return bytes;
  }
  bool InCredit(int64_t bytes) const {
    return outstanding_.empty() ||
           (outstanding_.size() < entries_ahead_ && Outstanding() + bytes <= credit_);
  }

  FusionPlanner planner_;
  int64_t credit_;
  size_t entries_ahead_;
  uint64_t last_order_ = 0;
  std::vector<Waiting> waiting_;  // in order of arrival
  std::vector<std::pair<uint64_t, int64_t>> outstanding_;
};

std::string Text(const std::vector<Bucket>& buckets) {
  std::string text;
  for (const Bucket& bucket : buckets) {
    text += std::to_string(bucket.bytes) + " bytes:";
    for (const Part& part : bucket.parts) {
      text += " " + std::to_string(part.unit);
      if (!part.whole) {
        text += "." + std::to_string(part.tensor) + "[" + std::to_string(part.begin) + "+" +
                std::to_string(part.count) + "]";
      }
      text += part.is_last ? "" : "…";
    }
    text += "\n";
  }
  return text;
}

class RandomUnits {
 public:
  explicit RandomUnits(uint64_t seed) : random_(seed) {}

  int Between(int low, int high) { return std::uniform_int_distribution<>(low, high)(random_); }
  bool Chance(int percent) { return Between(1, 100) <= percent; }

  FusionPlanner Planner() { return FusionPlanner({1 << Between(8, 14), 1 << Between(8, 12)}); }

  ReadyUnit Unit(UnitId id) {
    static constexpr OpKind kKinds[] = {OpKind::kAllreduce, OpKind::kAllreduce, OpKind::kBroadcast,
                                        OpKind::kAllgather, OpKind::kAlltoall,  OpKind::kBarrier};
    Signature signature = Allreduce({Between(1, 1000)});
    signature.kind = kKinds[Between(0, 5)];
    if (HasFreeFirstDimension(signature.kind)) signature.tensors[0].shape[0] = kFreeDimension;
    if (signature.kind == OpKind::kBarrier) signature.tensors.clear();
    if (signature.kind == OpKind::kBroadcast) signature.root = Between(0, 1);
    if (signature.kind == OpKind::kAllreduce && Chance(20)) {
      signature.tensors.resize(static_cast<size_t>(Between(2, 5)), signature.tensors[0]);
      if (Chance(50)) signature.tensors.back().dtype = DataType::kInt64;
    }
    return {id,
            std::make_shared<const Signature>(signature),
            Chance(10) ? std::vector<uint32_t>{1} : std::vector<uint32_t>{},
            Chance(50) ? 0 : Between(-2, 2),
            static_cast<size_t>(Chance(3) ? 1 << 21 : 100),
            HasFreeFirstDimension(signature.kind) ? Between(1, 1 << 13) : signature.TotalBytes()};
  }

 private:
  std::mt19937_64 random_;
};

TEST(SchedulerOrder, IsThatOfTheSimpleOne) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomUnits random(seed);
    const FusionPlanner planner = random.Planner();
    const auto ahead = static_cast<size_t>(random.Between(1, 4));
    Scheduler scheduler(planner, 1 << 14, ahead);
    SimpleScheduler simple(planner, 1 << 14, ahead);
    UnitId next_unit = 0;
    uint64_t published = 0;
    uint64_t executed = 0;
    for (int step = 0; step < 200; ++step) {
      for (int arrivals = random.Between(0, 4); arrivals > 0; --arrivals) {
        const ReadyUnit unit = random.Unit(next_unit++);
        scheduler.Push(unit);
        simple.Push(unit);
      }
      if (random.Chance(3)) {
        const FusionPlanner changed = random.Planner();
        scheduler.SetLimits(changed, 1 << 13);
        simple.SetLimits(changed, 1 << 13);
      }
      const std::vector<Bucket> taken = scheduler.Take();
      ASSERT_EQ(Text(taken), Text(simple.Take())) << "step " << step;
      for (const Bucket& bucket : taken) {
        scheduler.Published(++published, bucket.bytes);
        simple.Published(published, bucket.bytes);
      }
      if (executed < published && random.Chance(60)) {
        scheduler.Executed(++executed);
        simple.Executed(executed);
      }
    }
  }
}

// Each has its own queue. Searching all of them would take minutes.
TEST(SchedulerOrder, ManyThatShareNothingAreTakenInTurn) {
  constexpr UnitId kUnits = 200'000;
  Signature signature = Allreduce({kFreeDimension});
  signature.kind = OpKind::kAlltoall;
  const auto shared = std::make_shared<const Signature>(signature);
  Scheduler scheduler(FusionPlanner({1 << 20, 0}), 1 << 22);
  for (UnitId unit = 0; unit < kUnits; ++unit) scheduler.Push({unit, shared, {}, 0, 100, 4});
  for (UnitId unit = 0; unit < kUnits; ++unit) {
    ASSERT_TRUE(scheduler.CanTake());
    const std::vector<Bucket> taken = scheduler.Take();
    ASSERT_EQ(taken.at(0).parts.at(0).unit, unit);
    scheduler.Published(unit, 4);
    scheduler.Executed(unit);
  }
  EXPECT_TRUE(scheduler.empty());
}

}  // namespace
}  // namespace horoscale
