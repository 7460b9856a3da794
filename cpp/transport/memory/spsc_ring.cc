#include "transport/memory/spsc_ring.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <string>

namespace horoscale {
namespace {

Status ImpossibleCounters(uint64_t head, uint64_t tail, size_t capacity) {
  return Status::Protocol("control ring of " + std::to_string(capacity) +
                          " bytes is corrupt: " + std::to_string(head) + " bytes written, " +
                          std::to_string(tail) + " read");
}

}  // namespace

RingProducer::RingProducer(std::byte* memory, size_t capacity)
    : control_(reinterpret_cast<RingControl*>(memory)),
      data_(memory + sizeof(RingControl)),
      capacity_(capacity) {
  assert(std::has_single_bit(capacity));
}

Result<size_t> RingProducer::Append(std::span<const std::byte> bytes) {
  if (head_ - seen_tail_ + bytes.size() > capacity_) {
    const uint64_t tail = control_->tail.load();
    if (head_ - tail > capacity_) return ImpossibleCounters(head_, tail, capacity_);
    seen_tail_ = tail;
  }
  const size_t count = std::min<size_t>(bytes.size(), capacity_ - (head_ - seen_tail_));
  if (count == 0) return count;
  const size_t at = head_ & (capacity_ - 1);
  const size_t first = std::min(count, capacity_ - at);
  std::memcpy(data_ + at, bytes.data(), first);
  std::memcpy(data_, bytes.data() + first, count - first);
  head_ += count;
  return count;
}

void RingProducer::Commit() { control_->head.store(head_); }

void RingProducer::SetWaits(bool waits) { control_->producer_waits.store(waits ? 1 : 0); }

RingConsumer::RingConsumer(std::byte* memory, size_t capacity)
    : control_(reinterpret_cast<RingControl*>(memory)),
      data_(memory + sizeof(RingControl)),
      capacity_(capacity) {
  assert(std::has_single_bit(capacity));
}

Result<size_t> RingConsumer::Read(std::span<std::byte> out) {
  if (seen_head_ - tail_ < out.size()) {
    const uint64_t head = control_->head.load();
    if (head - tail_ > capacity_) return ImpossibleCounters(head, tail_, capacity_);
    seen_head_ = head;
  }
  const size_t count = std::min<size_t>(out.size(), seen_head_ - tail_);
  if (count == 0) return count;
  const size_t at = tail_ & (capacity_ - 1);
  const size_t first = std::min(count, capacity_ - at);
  std::memcpy(out.data(), data_ + at, first);
  std::memcpy(out.data() + first, data_, count - first);
  tail_ += count;
  return count;
}

bool RingConsumer::Commit() {
  control_->tail.store(tail_);
  return control_->producer_waits.load() != 0;
}

}  // namespace horoscale
