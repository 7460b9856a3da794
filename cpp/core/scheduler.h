// Scheduler: selects the next ready units: the most urgent first, first in, first out among equals.
// It publishes no more bytes ahead of execution than the credit, so that more urgent units that
// become ready later can still overtake.
//
// A bucket is filled with ready units of one class; it never waits for further units. Within one
// priority, a later unit may join a bucket before an earlier unit of another class. A less urgent
// unit joins only if no more urgent ones are left and the bucket stays within the size of a
// partition, which limits how long an urgent tensor may have to wait.
//
// The size of buckets adapts automatically. While one bucket is executed, all members know the next
// one; units that become ready meanwhile are fused. So the first bucket of a burst is small and
// starts immediately, and the slower buckets are executed, the larger they become.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "core/fusion_planner.h"

namespace horoscale {

class Scheduler {
 public:
  struct ReadyUnit {
    UnitId unit = 0;
    SharedSignature signature;
    std::vector<uint32_t> absent;
    int priority = 0;
    size_t message_bytes = 0;  // what naming it in full takes: bounds the size of a plan entry
    int64_t bytes = 0;         // what executing it moves
    std::optional<Encoding> chosen = {};  // of an adaptive one
  };

  // One entry is executed, the next is known to all members. With more entries, units that could be
  // fused would be published separately.
  static constexpr size_t kEntriesAhead = 2;

  // `entries_ahead`: maximum number of published entries that are not executed.
  Scheduler(FusionPlanner planner, int64_t credit_bytes, size_t entries_ahead = kEntriesAhead)
      : planner_(planner), credit_bytes_(credit_bytes), entries_ahead_(entries_ahead) {}

  // Sets the limits from now on. Waiting units remain split, or not, as when they were added.
  void SetLimits(FusionPlanner planner, int64_t credit_bytes);

  void Push(ReadyUnit unit);

  // Returns the next buckets, which must be published together. Published() must be called with
  // their bytes before the next call. Empty if nothing is ready or the credit is used up.
  std::vector<Bucket> Take();
  bool CanTake() const;
  bool empty() const { return queues_.empty(); }

  void Published(uint64_t sequence, int64_t bytes);
  // Returns the bytes of an entry to the credit. Unknown entries are ignored.
  void Executed(uint64_t sequence);

 private:
  struct Queued {
    UnitId unit;
    uint64_t order;
    SharedSignature signature;
    size_t message_bytes;
    int64_t bytes;
    FusionPlanner::Form form;
    int64_t begin;  // for a split tensor: elements before it have been taken
  };
  struct QueueKey {
    int priority;
    FusionClass fusion_class;
    bool operator<(const QueueKey& other) const {
      if (priority != other.priority) return priority > other.priority;
      return fusion_class < other.fusion_class;
    }
  };
  struct Queue {
    std::list<Queued> units;
    const QueueKey* key = nullptr;  // in shared_queues_; null: its only unit does not share a
                                    // bucket
  };
  // The order of queues by their first units: the most urgent first, then the oldest.
  struct Turn {
    int priority;
    uint64_t order;
    bool operator<(const Turn& other) const {
      return priority != other.priority ? priority > other.priority : order < other.order;
    }
  };
  using Queues = std::map<Turn, Queue>;
  struct Outstanding {
    uint64_t sequence;
    int64_t bytes;
  };

  Part NextPart(const Queued& queued) const;
  bool InCredit(int64_t bytes) const;
  // Moves parts from the queue to the bucket until it is full; returns true if that empties the
  // queue. Then reorders or removes the queue.
  bool Fill(Queues::iterator queue, int64_t limit, size_t* message_bytes, Bucket& bucket);
  void PutBack(Queues::iterator queue);

  FusionPlanner planner_;
  int64_t credit_bytes_;
  size_t entries_ahead_;
  uint64_t next_order_ = 1;
  Queues queues_;                           // the next one first; none is empty
  std::map<QueueKey, Turn> shared_queues_;  // queues that units of a class may join
  std::deque<Outstanding> outstanding_;
  int64_t outstanding_bytes_ = 0;
};

}  // namespace horoscale
