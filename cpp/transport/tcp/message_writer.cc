#include "transport/tcp/message_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace horoscale {

MessageWriter::~MessageWriter() { Clear(); }

void MessageWriter::Add(const MessageHeader& header, std::span<const std::byte> payload) {
  Message& message = waiting_.emplace_back();
  message.bytes.resize(sizeof(header) + payload.size());
  std::memcpy(message.bytes.data(), &header, sizeof(header));
  std::copy(payload.begin(), payload.end(), message.bytes.begin() + sizeof(header));
}

void MessageWriter::AddFromPlace(const MessageHeader& header, std::span<const std::byte> data,
                                 std::shared_ptr<const void> memory, uint32_t* pending) {
  Add(header, {});
  Message& message = waiting_.back();
  message.data = data;
  message.memory = std::move(memory);
  message.pending = pending;
  ++*pending;
}

Result<bool> MessageWriter::Flush(ByteStream& stream) {
  bool moved = false;
  while (!waiting_.empty()) {
    std::array<std::span<const std::byte>, ByteStream::kMaxPieces> pieces;
    size_t count = 0;
    size_t skip = gone_;
    for (const Message& message : waiting_) {
      if (count + 2 > pieces.size()) break;
      for (const std::span<const std::byte> part :
           {std::span<const std::byte>(message.bytes), message.data}) {
        const size_t passed = std::min(skip, part.size());
        skip -= passed;
        if (passed < part.size()) pieces[count++] = part.subspan(passed);
      }
    }
    Result<size_t> sent = stream.SendSome(std::span(pieces).first(count));
    if (!sent.ok()) return sent.status();
    if (*sent == 0) break;
    moved = true;
    Sent(*sent);
  }
  return moved;
}

void MessageWriter::Sent(size_t bytes) {
  gone_ += bytes;
  while (!waiting_.empty() && gone_ >= waiting_.front().size()) {
    gone_ -= waiting_.front().size();
    if (waiting_.front().pending != nullptr) --*waiting_.front().pending;
    waiting_.pop_front();
  }
}

void MessageWriter::Clear() {
  for (const Message& message : waiting_) {
    if (message.pending != nullptr) --*message.pending;
  }
  waiting_.clear();
  gone_ = 0;
}

}  // namespace horoscale
