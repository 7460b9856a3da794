#include "transport/tcp/message_reader.h"

#include <algorithm>
#include <cstring>

namespace horoscale {

std::array<std::span<std::byte>, 2> MessageReader::Room() {
  // The buffer is empty by then, or holds the beginning of a header.
  std::copy(buffer_.begin() + static_cast<ptrdiff_t>(begin_),
            buffer_.begin() + static_cast<ptrdiff_t>(end_), buffer_.begin());
  end_ -= begin_;
  begin_ = 0;
  std::span<std::byte> rest;
  if (in_payload_) rest = {payload_ + filled_, header_.bytes - filled_};
  return {rest, std::span(buffer_).subspan(end_)};
}

Status MessageReader::Take(size_t bytes, Handler& handler) {
  const size_t part = in_payload_ ? std::min(bytes, header_.bytes - filled_) : 0;
  filled_ += part;
  end_ += bytes - part;
  if (in_payload_) {
    if (filled_ < header_.bytes) return {};
    HS_RETURN_IF_ERROR(Finish(handler));
  }
  return TakeFromBuffer(handler);
}

Status MessageReader::TakeFromBuffer(Handler& handler) {
  while (true) {
    if (!in_payload_) {
      if (end_ - begin_ < sizeof(header_)) return {};
      std::memcpy(&header_, buffer_.data() + begin_, sizeof(header_));
      begin_ += sizeof(header_);
      Result<std::byte*> space = handler.OnHeader(header_);
      if (!space.ok()) return space.status();
      kept_.resize(*space == nullptr ? header_.bytes : 0);
      payload_ = *space == nullptr ? kept_.data() : *space;
      filled_ = 0;
      in_payload_ = true;
    }
    const size_t part = std::min(end_ - begin_, header_.bytes - filled_);
    if (part > 0) std::memcpy(payload_ + filled_, buffer_.data() + begin_, part);
    begin_ += part;
    filled_ += part;
    if (filled_ < header_.bytes) return {};
    HS_RETURN_IF_ERROR(Finish(handler));
  }
}

Status MessageReader::Finish(Handler& handler) {
  in_payload_ = false;
  return handler.OnMessage(header_, {payload_, header_.bytes});
}

}  // namespace horoscale
