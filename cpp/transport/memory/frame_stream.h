// Control frames over a byte ring, of any length up to kMaxMessageBytes, including frames longer
// than the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/memory/doorbell.h"
#include "transport/memory/spsc_ring.h"
#include "transport/transport.h"

namespace horoscale {

// The header of each payload. Both ends run on one machine, so it is sent in memory layout.
struct FramePrefix {
  uint32_t payload_bytes;
  uint16_t kind;
  uint16_t reserved;  // zero
  uint32_t process_set;
  uint32_t incarnation;
};
static_assert(sizeof(FramePrefix) == 16);

class FrameWriter {
 public:
  // Rings the consumer's doorbell after each change of the ring.
  FrameWriter(RingProducer ring, Doorbell* consumer) : ring_(ring), consumer_(consumer) {}

  // Data that does not fit into the ring is queued for Flush(). A failed status means that the ring
  // is corrupt.
  Status Send(const FrameHeader& header, std::span<const std::byte> payload);

  // Writes queued data; returns whether there was progress.
  Result<bool> Flush();
  bool HasBacklog() const { return backlog_begin_ < backlog_.size(); }

 private:
  Status AppendOrKeep(std::span<const std::byte> bytes);
  Result<size_t> AppendBacklog();

  RingProducer ring_;
  Doorbell* consumer_;
  std::vector<std::byte> backlog_;  // not in the ring yet: from backlog_begin_
  size_t backlog_begin_ = 0;
};

struct Frame {
  FrameHeader header;
  // A copy, so that the data that was checked is the data that is used, whatever the other side
  // writes meanwhile.
  std::vector<std::byte> payload;
};

class FrameReader {
 public:
  // Rings the producer's doorbell when it frees space that the producer waits for.
  FrameReader(RingConsumer ring, Doorbell* producer) : ring_(ring), producer_(producer) {}

  // Whether Next() would find nothing; cheaper than Next().
  bool Idle() const { return ring_.Empty(); }

  // The next complete frame, valid until the next call; null if there is none. A failed status
  // means that the stream is permanently broken.
  Result<const Frame*> Next();

 private:
  Result<bool> ReadPrefix();
  Result<bool> ReadPayload();

  RingConsumer ring_;
  Doorbell* producer_;
  FramePrefix prefix_ = {};
  size_t prefix_have_ = 0;
  size_t payload_have_ = 0;
  Frame frame_;
};

}  // namespace horoscale
