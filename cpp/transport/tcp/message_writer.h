// MessageWriter: the queue of messages to a stream socket, with tags if the stream has a key
// (message_tags.h).
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
  // Without a key, messages have no tags.
  explicit MessageWriter(const std::optional<MessageKey>& key = {});
  ~MessageWriter();

  // The payload is copied.
  void Add(const MessageHeader& header, std::span<const std::byte> payload);
  // The data is not copied. `memory` keeps the data and `pending` alive; `pending` is incremented
  // until the data has been sent.
  void AddFromPlace(const MessageHeader& header, std::span<const std::byte> data,
                    std::shared_ptr<const void> memory, uint32_t* pending);

  // Unsent data of messages with this `pending` is sent from the copy at `to` instead of `from`.
  void Move(const uint32_t* pending, const std::byte* from, const std::byte* to);

  bool empty() const { return waiting_.empty(); }
  // Sends as much as possible without waiting; returns whether it sent anything.
  Result<bool> Flush(ByteStream& stream);
  // Discards all messages.
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

  // Adds the header and its tag, with room for more_bytes.
  Message& Begin(const MessageHeader& header, size_t more_bytes);
  void Sent(size_t bytes);

  std::optional<Seal> seal_;
  std::deque<Message> waiting_;
  size_t gone_ = 0;  // bytes of the first message that were sent
};

}  // namespace horoscale
