// The messages of transports that have no memory in common (TCP, MPI): what goes before each
// payload. All ranks of a job have one byte order, so its bytes are the wire's.
#pragma once

#include <cstdint>

#include "transport/transport.h"

namespace horoscale {

enum class MessageType : uint16_t {
  kFrame = 1,     // a control frame; the payload is the frame's
  kOpened = 2,    // the sender has opened the channel
  kReleased = 3,  // the sender has released the rounds below `round`
  kChunk = 4,     // what the receiver may read of a chunk: the payload
  kAnnounce = 5,  // MPI: the same, but the `bytes` follow as the next message of the data tag
};

struct MessageHeader {
  MessageType type;
  FrameKind kind;  // of a frame
  uint32_t process_set;
  uint32_t incarnation;
  uint32_t bytes;   // of the payload
  uint32_t offset;  // of a chunk's part in the chunk
  uint16_t part;    // which of the chunk's parts
  uint8_t others;   // parts that come in other messages
  uint8_t sealed;   // of a chunk: 1 if the payload is authenticated, where connections are
  uint64_t round;
};
static_assert(sizeof(MessageHeader) == 32);

}  // namespace horoscale
