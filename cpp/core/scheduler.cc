#include "core/scheduler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/codec.h"

namespace horoscale {
namespace {

// Limit of the encoded size of an entry's units if all are sent in full; one unit is always
// allowed.
constexpr size_t kMaxEntryBytes = kMaxMessageBytes / 4;

}  // namespace

void Scheduler::SetLimits(FusionPlanner planner, int64_t credit_bytes) {
  planner_ = planner;
  credit_bytes_ = credit_bytes;
}

void Scheduler::Push(ReadyUnit unit) {
  Turn turn{unit.priority, next_order_++};
  const FusionPlanner::Form form = planner_.FormOf(*unit.signature);
  FusionClass fusion_class = planner_.ClassOf(*unit.signature, std::move(unit.absent), turn.order);
  if (unit.chosen) fusion_class.terms.encoding = *unit.chosen;
  const QueueKey* key = nullptr;
  if (fusion_class.alone == 0) {
    const auto place =
        shared_queues_.try_emplace({unit.priority, std::move(fusion_class)}, turn).first;
    key = &place->first;
    turn = place->second;  // the older one, if the queue already exists
  }
  Queue& queue = queues_[turn];
  queue.key = key;
  queue.units.push_back({unit.unit, next_order_ - 1, std::move(unit.signature), unit.message_bytes,
                         unit.bytes, form, 0});
}

Part Scheduler::NextPart(const Queued& queued) const {
  if (queued.form == FusionPlanner::Form::kCut) {
    return planner_.Cut(queued.unit, *queued.signature, 0, queued.begin);
  }
  return {.unit = queued.unit, .bytes = queued.bytes};
}

bool Scheduler::InCredit(int64_t bytes) const {
  return outstanding_.empty() ||
         (outstanding_.size() < entries_ahead_ && outstanding_bytes_ + bytes <= credit_bytes_);
}

bool Scheduler::CanTake() const {
  return !queues_.empty() && InCredit(NextPart(queues_.begin()->second.units.front()).bytes);
}

bool Scheduler::Fill(Queues::iterator queue, int64_t limit, size_t* message_bytes, Bucket& bucket) {
  std::list<Queued>& units = queue->second.units;
  while (!units.empty()) {
    Queued& next = units.front();
    const Part part = NextPart(next);
    if (!bucket.parts.empty() &&
        (bucket.bytes + part.bytes > limit || bucket.parts.size() >= kMaxPlanItems ||
         *message_bytes + next.message_bytes > kMaxEntryBytes)) {
      break;
    }
    bucket.Add(part);
    *message_bytes += next.message_bytes;
    next.begin += part.count;
    if (part.is_last) units.pop_front();
  }
  const bool emptied = units.empty();
  PutBack(queue);
  return emptied;
}

void Scheduler::PutBack(Queues::iterator queue) {
  const auto& [units, key] = queue->second;
  if (units.empty()) {
    if (key != nullptr) shared_queues_.erase(*key);
    queues_.erase(queue);
  } else if (units.front().order != queue->first.order) {
    auto node = queues_.extract(queue);
    node.key().order = node.mapped().units.front().order;
    shared_queues_.at(*node.mapped().key) = node.key();
    queues_.insert(std::move(node));
  }
}

std::vector<Bucket> Scheduler::Take() {
  if (!CanTake()) return {};
  auto queue = queues_.begin();
  const Queued& first = queue->second.units.front();
  std::vector<Bucket> buckets;
  if (first.form == FusionPlanner::Form::kDivided) {
    buckets = planner_.Divide(first.unit, *first.signature);
    queue->second.units.pop_front();
    PutBack(queue);
    return buckets;
  }
  std::optional<QueueKey> key;
  if (queue->second.key != nullptr) key = *queue->second.key;
  const int64_t room =
      outstanding_.empty() ? planner_.limits().bucket_bytes : credit_bytes_ - outstanding_bytes_;
  int64_t limit = std::min(planner_.limits().bucket_bytes, room);
  size_t message_bytes = 0;
  Bucket& bucket = buckets.emplace_back();
  bool emptied = Fill(queue, limit, &message_bytes, bucket);
  // Less urgent units of the class are added if no more urgent ones are left.
  while (key && emptied && !queues_.empty()) {
    const int priority = queues_.begin()->first.priority;
    if (priority == key->priority) break;
    key->priority = priority;
    if (const int64_t part = planner_.limits().partition_bytes; part > 0) {
      limit = std::min(limit, part);
    }
    const auto next = shared_queues_.find(*key);
    if (next == shared_queues_.end()) break;
    emptied = Fill(queues_.find(next->second), limit, &message_bytes, bucket);
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
