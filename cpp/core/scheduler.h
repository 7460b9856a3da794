// Which ready unit is executed next? The most urgent first, first in first out among equals, and
// never more bytes ahead of execution than the credit, so that what becomes ready later can still
// overtake.
//
// A bucket is filled with units of one class that are ready: none waits for others to come. Within
// one priority a later unit may join a bucket before an earlier one of another class. A less urgent
// unit joins only when nothing more urgent is left, and as long as the bucket is no larger than a
// partition: that is how long an urgent tensor may have to wait for others.
//
// Buckets find their size by themselves. While one is executed the next is known to all members;
// what becomes ready meanwhile is put together. So the first of a burst is small and starts at
// once, and the slower buckets are executed, the larger they get.
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

  // One is executed, the next is known to all members. With more, what could travel together would
  // be published apart.
  static constexpr size_t kEntriesAhead = 2;

  // `entries_ahead`: published and not executed, at most.
  Scheduler(FusionPlanner planner, int64_t credit_bytes, size_t entries_ahead = kEntriesAhead)
      : planner_(planner), credit_bytes_(credit_bytes), entries_ahead_(entries_ahead) {}

  // From now on. Units that wait are cut or not as they were when they came.
  void SetLimits(FusionPlanner planner, int64_t credit_bytes);

  void Push(ReadyUnit unit);

  // The buckets that are next and have to be published together, their bytes to be charged by
  // Published() before the next call. None if nothing is ready or the credit is used up.
  std::vector<Bucket> Take();
  bool CanTake() const;
  bool empty() const { return queues_.empty(); }

  void Published(uint64_t sequence, int64_t bytes);
  // Gives back the bytes of an entry. Unknown ones are ignored.
  void Executed(uint64_t sequence);

 private:
  struct Queued {
    UnitId unit;
    uint64_t order;
    SharedSignature signature;
    size_t message_bytes;
    int64_t bytes;
    FusionPlanner::Form form;
    int64_t begin;  // of a cut tensor: what has been taken
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
    const QueueKey* key = nullptr;  // in shared_queues_; null: its one unit shares with no other
  };
  // When a queue is due, by its first unit: the most urgent first, then the oldest.
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
  // Moves parts from the queue to the bucket until it is full; true if that empties the queue.
  // Then the queue is where its first unit is due, or gone.
  bool Fill(Queues::iterator queue, int64_t limit, size_t* message_bytes, Bucket& bucket);
  void PutBack(Queues::iterator queue);

  FusionPlanner planner_;
  int64_t credit_bytes_;
  size_t entries_ahead_;
  uint64_t next_order_ = 1;
  Queues queues_;                           // the next one first; none is empty
  std::map<QueueKey, Turn> shared_queues_;  // which of them units of a class may join
  std::deque<Outstanding> outstanding_;
  int64_t outstanding_bytes_ = 0;
};

}  // namespace horoscale
