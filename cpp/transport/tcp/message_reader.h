// MessageReader: splits a stream of bytes into messages. The handler chooses the destination of
// payloads, so that one call reads a chunk from the socket into its bank, and the following data
// into a buffer.
//
//     room = reader.Room();  n = receive(room);  reader.Take(n, handler);
//
// The stream is not trusted: the handler must accept each header before its payload is read. If
// messages are authenticated (see MessageWriter), the handler receives headers and messages only
// after their tags have been checked. A payload may have been stored at its destination before
// that.
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
    // The destination of the payload's header.bytes; null: the reader buffers them for OnMessage().
    virtual Result<std::byte*> OnHeader(const MessageHeader& header) = 0;
    virtual Status OnMessage(const MessageHeader& header, std::span<const std::byte> payload) = 0;
  };

  // Data that is received together with a header is copied out of the buffer, which may contain
  // many small messages. The buffer must hold at least a header and its tag.
  explicit MessageReader(size_t buffer_bytes, const std::optional<MessageKey>& key = {});

  // Where to receive next: the rest of a payload, which may be empty, and the buffer's free space.
  std::array<std::span<std::byte>, 2> Room();
  // `bytes` of the room have been filled. After an error the reader is unusable.
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

  std::optional<Seal> seal_;  // if empty, messages have no tags
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;  // start of the unread data in the buffer
  size_t end_ = 0;
  Stage stage_ = Stage::kHeader;
  MessageHeader header_{};
  std::vector<std::byte> kept_;  // a payload without another destination
  std::byte* payload_ = nullptr;
  size_t filled_ = 0;  // of the payload
};

}  // namespace horoscale
