// MessageReader: cuts a stream of bytes into messages. Payloads go where the handler wants them, so
// that a chunk is read from the socket into its bank.
//
//     room = reader.Room();  n = receive(room);  reader.Take(n, handler);
//
// Nothing of the stream is believed: the handler accepts each header before its payload is read.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/message/message.h"

namespace horoscale {

class MessageReader {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // Where the header.bytes of the payload belong; null: the reader keeps them for OnMessage().
    virtual Result<std::byte*> OnHeader(const MessageHeader& header) = 0;
    virtual Status OnMessage(const MessageHeader& header, std::span<const std::byte> payload) = 0;
  };

  // Where to receive next; never empty.
  std::span<std::byte> Room();
  // `bytes` of the room have been filled. After an error the reader is of no more use.
  Status Take(size_t bytes, Handler& handler);

 private:
  // Small messages are received many at a time.
  static constexpr size_t kBufferBytes = 64 << 10;

  Status TakeFromBuffer(Handler& handler);
  Status Finish(Handler& handler);

  std::vector<std::byte> buffer_ = std::vector<std::byte>(kBufferBytes);
  size_t begin_ = 0;  // of what is in the buffer
  size_t end_ = 0;
  bool in_payload_ = false;
  MessageHeader header_{};
  std::vector<std::byte> kept_;  // a payload that nobody else wants
  std::byte* payload_ = nullptr;
  size_t filled_ = 0;  // of the payload
};

}  // namespace horoscale
