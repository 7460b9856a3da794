// The message header of transports without shared memory (TCP, MPI). All ranks of a job have the
// same byte order, so it is sent in memory layout.
#pragma once

#include <cstdint>

#include "transport/transport.h"

namespace horoscale {

enum class MessageType : uint16_t {
  kFrame = 1,     // a control frame; the payload is the frame's
  kOpened = 2,    // the sender has opened the channel
  kReleased = 3,  // the sender has released the rounds below `round`
  kChunk = 4,     // the payload is the receiver's extent of a chunk
  kAnnounce = 5,  // MPI: the same, but the `bytes` follow as the next message with the data tag
};

struct MessageHeader {
  MessageType type;
  FrameKind kind;  // of a frame
  uint32_t process_set;
  uint32_t incarnation;
  uint32_t bytes;   // of the payload
  uint32_t offset;  // of a chunk's part in the chunk
  uint16_t part;    // index of the part in the chunk
  uint8_t others;   // number of parts in other messages
  uint8_t sealed;   // for a chunk: 1 if the payload is authenticated, on authenticated connections
  uint64_t round;
};
static_assert(sizeof(MessageHeader) == 32);

}  // namespace horoscale
