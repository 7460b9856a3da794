// MessageReader: cuts a stream of bytes into messages. Payloads go where the handler wants them, so
// that a chunk is read from the socket into its bank, and with it, in one call, what comes behind
// it into a buffer.
//
//     room = reader.Room();  n = receive(room);  reader.Take(n, handler);
//
// Nothing of the stream is believed: the handler accepts each header before its payload is read.
// Where messages are authenticated (MessageWriter says how), the handler sees no header, and is
// told of no message, before its tag has been checked. A payload may be in its place by then.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "rendezvous/seal.h"
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

  // What is received together with a header is copied out of the buffer, and a buffer can be full
  // of small messages; it has room for a header and its tag at least.
  explicit MessageReader(size_t buffer_bytes, const std::optional<MessageKey>& key = {});

  // Where to receive next: the rest of a payload, which may be none, and the buffer's room.
  std::array<std::span<std::byte>, 2> Room();
  // `bytes` of the room have been filled. After an error the reader is of no more use.
  Status Take(size_t bytes, Handler& handler);

 private:
  enum class Stage : uint8_t { kHeader, kPayload, kTag };

  Status TakeFromBuffer(Handler& handler);
  Status OpenHeader(Handler& handler);
  Status OpenPayload();
  Status Finish(Handler& handler);
  std::span<const std::byte> Buffered() const {
    return std::span(buffer_).subspan(begin_, end_ - begin_);
  }

  std::optional<Seal> seal_;  // none: messages have no tags
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;  // of what is in the buffer
  size_t end_ = 0;
  Stage stage_ = Stage::kHeader;
  MessageHeader header_{};
  std::vector<std::byte> kept_;  // a payload that nobody else wants
  std::byte* payload_ = nullptr;
  size_t filled_ = 0;  // of the payload
};

}  // namespace horoscale
