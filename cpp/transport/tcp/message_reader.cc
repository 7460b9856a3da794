#include "transport/tcp/message_reader.h"

#include <algorithm>
#include <cstring>

#include "transport/tcp/message_tags.h"

namespace horoscale {

MessageReader::MessageReader(size_t buffer_bytes, const std::optional<MessageKey>& key)
    : buffer_(buffer_bytes) {
  if (key) seal_.emplace(*key);
}

std::array<std::span<std::byte>, 2> MessageReader::Room() {
  // The buffer is empty by then, or holds the beginning of a header or of a tag.
  std::copy(buffer_.begin() + static_cast<ptrdiff_t>(begin_),
            buffer_.begin() + static_cast<ptrdiff_t>(end_), buffer_.begin());
  end_ -= begin_;
  begin_ = 0;
  std::span<std::byte> rest;
  if (stage_ == Stage::kPayload) rest = {payload_ + filled_, header_.bytes - filled_};
  return {rest, std::span(buffer_).subspan(end_)};
}

Status MessageReader::Take(size_t bytes, Handler& handler) {
  if (stage_ == Stage::kPayload) {
    const size_t part = std::min(bytes, header_.bytes - filled_);
    filled_ += part;
    bytes -= part;
  }
  end_ += bytes;
  return TakeFromBuffer(handler);
}

Status MessageReader::TakeFromBuffer(Handler& handler) {
  const size_t tag_bytes = seal_ ? Seal::kTagBytes : 0;
  while (true) {
    if (stage_ == Stage::kHeader) {
      if (end_ - begin_ < sizeof(header_) + tag_bytes) return {};
      HS_RETURN_IF_ERROR(OpenHeader(handler));
      begin_ += sizeof(header_) + tag_bytes;
    }
    if (stage_ == Stage::kPayload) {
      const size_t part = std::min(end_ - begin_, header_.bytes - filled_);
      if (part > 0) std::memcpy(payload_ + filled_, buffer_.data() + begin_, part);
      begin_ += part;
      filled_ += part;
      if (filled_ < header_.bytes) return {};
      if (seal_ && HasPayloadTag(header_)) stage_ = Stage::kTag;
    }
    if (stage_ == Stage::kTag) {
      if (end_ - begin_ < tag_bytes) return {};
      HS_RETURN_IF_ERROR(OpenPayload());
      begin_ += tag_bytes;
    }
    HS_RETURN_IF_ERROR(Finish(handler));
  }
}

Status MessageReader::OpenHeader(Handler& handler) {
  const std::span<const std::byte> bytes = Buffered().first(sizeof(header_));
  if (seal_) {
    const auto tag = Buffered().subspan(sizeof(header_)).first<Seal::kTagBytes>();
    HS_RETURN_IF_ERROR(seal_->Check(bytes, tag));
  }
  std::memcpy(&header_, bytes.data(), sizeof(header_));
  Result<std::byte*> space = handler.OnHeader(header_);
  if (!space.ok()) return space.status();
  kept_.resize(*space == nullptr ? header_.bytes : 0);
  payload_ = *space == nullptr ? kept_.data() : *space;
  filled_ = 0;
  stage_ = Stage::kPayload;
  return {};
}

Status MessageReader::OpenPayload() {
  return seal_->Check({payload_, header_.bytes}, Buffered().first<Seal::kTagBytes>());
}

Status MessageReader::Finish(Handler& handler) {
  stage_ = Stage::kHeader;
  return handler.OnMessage(header_, {payload_, header_.bytes});
}

}  // namespace horoscale
