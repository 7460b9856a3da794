// A byte ring in raw memory between one producer and one consumer, in one process or in two.
//
// head and tail count all bytes ever written and read, so full and empty are distinguishable
// without a spare byte, and the counters never wrap. Each side trusts only its own counter and
// validates the other's, because the other side may be a faulty process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace horoscale {

// The start of the ring's memory; zeros are an empty ring. Each side writes one cache line.
struct RingControl {
  alignas(64) std::atomic<uint64_t> head;  // producer's
  std::atomic<uint32_t> producer_waits;    // producer's: ring its doorbell when space is freed
  alignas(64) std::atomic<uint64_t> tail;  // consumer's
};
static_assert(sizeof(RingControl) == 128);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The memory size of a ring with this capacity (a power of two); the memory must be 64-byte
// aligned.
constexpr size_t RingMemoryBytes(size_t capacity) { return sizeof(RingControl) + capacity; }

class RingProducer {
 public:
  RingProducer(std::byte* memory, size_t capacity);

  // Copies as many bytes as there is space for and returns their number; the consumer sees them
  // after Commit(). kProtocol if the consumer's counter is invalid.
  Result<size_t> Append(std::span<const std::byte> bytes);
  void Commit();

  // While set, the consumer rings the producer's doorbell when it frees space. To wait for space
  // without losing a wake-up, a producer sets it and appends again.
  void SetWaits(bool waits);

 private:
  RingControl* control_;
  std::byte* data_;
  size_t capacity_;
  uint64_t head_ = 0;
  uint64_t seen_tail_ = 0;
};

class RingConsumer {
 public:
  RingConsumer(std::byte* memory, size_t capacity);

  // Whether there is nothing to read; an idle engine polls this for each peer.
  bool Empty() const { return seen_head_ == tail_ && control_->head.load() == tail_; }

  // Copies at most out.size() bytes and returns their number; their space is freed by Commit().
  // kProtocol if the producer's counter is invalid.
  Result<size_t> Read(std::span<std::byte> out);
  // Returns whether the producer waits for space.
  bool Commit();

 private:
  RingControl* control_;
  const std::byte* data_;
  size_t capacity_;
  uint64_t tail_ = 0;
  uint64_t seen_head_ = 0;
};

}  // namespace horoscale
