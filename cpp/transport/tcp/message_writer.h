// MessageWriter: messages on their way into a stream socket, in order; with tags where the stream
// has a key (message_tags.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "rendezvous/seal.h"
#include "transport/message/message.h"

namespace horoscale {

class MessageWriter {
 public:
  // `key`: none: messages have no tags.
  explicit MessageWriter(const std::optional<MessageKey>& key = {});
  ~MessageWriter();

  // The payload is copied.
  void Add(const MessageHeader& header, std::span<const std::byte> payload);
  // The data is sent from where it is; `memory` keeps it and `pending` alive, which is one more
  // until it has gone.
  void AddFromPlace(const MessageHeader& header, std::span<const std::byte> data,
                    std::shared_ptr<const void> memory, uint32_t* pending);

  // What has not gone yet of the messages with this `pending` is sent from where `to` stands for
  // `from`.
  void Move(const uint32_t* pending, const std::byte* from, const std::byte* to);

  bool empty() const { return waiting_.empty(); }
  // Sends what goes without waiting; whether anything moved.
  Result<bool> Flush(ByteStream& stream);
  // Forgets everything.
  void Clear();

 private:
  struct Message {
    std::vector<std::byte> bytes;  // the header, and a payload that was copied, with their tags
    std::span<const std::byte> data;
    std::vector<std::byte> tag;  // of the data; or none
    std::shared_ptr<const void> memory;
    uint32_t* pending = nullptr;
    size_t size() const { return bytes.size() + data.size() + tag.size(); }
  };

  // The header and its tag, with room for so many more.
  Message& Begin(const MessageHeader& header, size_t more_bytes);
  void Sent(size_t bytes);

  std::optional<Seal> seal_;
  std::deque<Message> waiting_;
  size_t gone_ = 0;  // of the first one
};

}  // namespace horoscale
