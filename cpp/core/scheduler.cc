#include "core/scheduler.h"

#include <algorithm>

#include "core/codec.h"

namespace horoscale {
namespace {

// What the units of one entry may take when all are named in full; one unit always may.
constexpr size_t kMaxEntryBytes = kMaxMessageBytes / 4;

}  // namespace

void Scheduler::SetLimits(FusionPlanner planner, int64_t credit_bytes) {
  planner_ = planner;
  credit_bytes_ = credit_bytes;
}

void Scheduler::Push(ReadyUnit unit) {
  const uint64_t order = next_order_++;
  const FusionPlanner::Form form = planner_.FormOf(*unit.signature);
  FusionClass fusion_class = planner_.ClassOf(*unit.signature, std::move(unit.absent), order);
  queues_[{unit.priority, std::move(fusion_class)}].push_back(
      {unit.unit, order, std::move(unit.signature), unit.message_bytes, form, 0});
}

template <typename AnyQueues>
auto Scheduler::Next(AnyQueues& queues) {
  auto oldest = queues.begin();
  for (auto it = oldest; it != queues.end() && it->first.priority == oldest->first.priority; ++it) {
    if (it->second.front().order < oldest->second.front().order) oldest = it;
  }
  return oldest;
}

Part Scheduler::NextPart(const Queued& queued) const {
  if (queued.form == FusionPlanner::Form::kCut) {
    return planner_.Cut(queued.unit, *queued.signature, 0, queued.begin);
  }
  return {.unit = queued.unit, .bytes = queued.signature->TotalBytes()};
}

bool Scheduler::InCredit(int64_t bytes) const {
  return outstanding_.empty() ||
         (outstanding_.size() < entries_ahead_ && outstanding_bytes_ + bytes <= credit_bytes_);
}

bool Scheduler::CanTake() const {
  return !queues_.empty() && InCredit(NextPart(Next(queues_)->second.front()).bytes);
}

bool Scheduler::Fill(Queue& queue, int64_t limit, size_t* message_bytes, Bucket& bucket) const {
  while (!queue.empty()) {
    Queued& next = queue.front();
    const Part part = NextPart(next);
    if (!bucket.parts.empty() &&
        (bucket.bytes + part.bytes > limit || bucket.parts.size() >= kMaxPlanItems ||
         *message_bytes + next.message_bytes > kMaxEntryBytes)) {
      return false;
    }
    bucket.Add(part);
    *message_bytes += next.message_bytes;
    next.begin += part.count;
    if (part.is_last) queue.pop_front();
  }
  return true;
}

std::vector<Bucket> Scheduler::Take() {
  if (!CanTake()) return {};
  auto queue = Next(queues_);
  QueueKey key = queue->first;
  const Queued& first = queue->second.front();
  std::vector<Bucket> buckets;
  const bool divided = first.form == FusionPlanner::Form::kDivided;
  if (divided) {
    buckets = planner_.Divide(first.unit, *first.signature);
    queue->second.pop_front();
  } else {
    buckets.emplace_back();
  }
  const int64_t room =
      outstanding_.empty() ? planner_.limits().bucket_bytes : credit_bytes_ - outstanding_bytes_;
  int64_t limit = std::min(planner_.limits().bucket_bytes, room);
  size_t message_bytes = 0;
  bool emptied = divided || Fill(queue->second, limit, &message_bytes, buckets[0]);
  while (emptied) {
    queues_.erase(queue);
    if (queues_.empty() || key.fusion_class.alone != 0) break;
    if (queues_.begin()->first.priority == key.priority) break;
    key.priority = queues_.begin()->first.priority;
    if (const int64_t part = planner_.limits().partition_bytes; part > 0) {
      limit = std::min(limit, part);
    }
    queue = queues_.find(key);
    if (queue == queues_.end()) break;
    emptied = Fill(queue->second, limit, &message_bytes, buckets[0]);
  }
  return buckets;
}

void Scheduler::Published(uint64_t sequence, int64_t bytes) {
  outstanding_.push_back({sequence, bytes});
  outstanding_bytes_ += bytes;
}

void Scheduler::Executed(uint64_t sequence) {
  auto found = std::find_if(outstanding_.begin(), outstanding_.end(),
                            [&](const Outstanding& o) { return o.sequence == sequence; });
  if (found == outstanding_.end()) return;
  outstanding_bytes_ -= found->bytes;
  outstanding_.erase(found);
}

}  // namespace horoscale
