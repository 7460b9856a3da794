#include "transport/tcp/message_writer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "transport/tcp/message_tags.h"

namespace horoscale {
namespace {

void Append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

}  // namespace

MessageWriter::MessageWriter(const std::optional<MessageKey>& key) {
  if (key) seal_.emplace(*key);
}

MessageWriter::~MessageWriter() { Clear(); }

MessageWriter::Message& MessageWriter::Begin(const MessageHeader& header, size_t more_bytes) {
  Message& message = waiting_.emplace_back();
  message.bytes.reserve(sizeof(header) + Seal::kTagBytes + more_bytes);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(&header, 1));
  Append(message.bytes, bytes);
  if (seal_) Append(message.bytes, seal_->Next(bytes));
  return message;
}

void MessageWriter::Add(const MessageHeader& header, std::span<const std::byte> payload) {
  Message& message = Begin(header, payload.size() + Seal::kTagBytes);
  Append(message.bytes, payload);
  if (seal_ && HasPayloadTag(header)) Append(message.bytes, seal_->Next(payload));
}

void MessageWriter::AddFromPlace(const MessageHeader& header, std::span<const std::byte> data,
                                 std::shared_ptr<const void> memory, uint32_t* pending) {
  Message& message = Begin(header, 0);
  message.data = data;
  if (seal_ && HasPayloadTag(header)) Append(message.tag, seal_->Next(data));
  message.memory = std::move(memory);
  message.pending = pending;
  ++*pending;
}

void MessageWriter::Move(const uint32_t* pending, const std::byte* from, const std::byte* to) {
  for (Message& message : waiting_) {
    if (message.pending != pending) continue;
    message.data = {to + (message.data.data() - from), message.data.size()};
  }
}

Result<bool> MessageWriter::Flush(ByteStream& stream) {
  bool moved = false;
  while (!waiting_.empty()) {
    std::array<std::span<const std::byte>, ByteStream::kMaxPieces> pieces;
    size_t count = 0;
    size_t skip = gone_;
    for (const Message& message : waiting_) {
      const std::span<const std::byte> parts[] = {message.bytes, message.data, message.tag};
      if (count + std::size(parts) > pieces.size()) break;
      for (const std::span<const std::byte> part : parts) {
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
