#include "transport/memory/frame_stream.h"

#include <cassert>
#include <string>

#include "core/codec.h"

namespace horoscale {

Status FrameWriter::Send(const FrameHeader& header, std::span<const std::byte> payload) {
  assert(payload.size() <= kMaxMessageBytes);
  const FramePrefix prefix = {static_cast<uint32_t>(payload.size()),
                              static_cast<uint16_t>(header.kind), 0, header.channel.process_set,
                              header.channel.incarnation};
  const bool had_backlog = HasBacklog();
  HS_RETURN_IF_ERROR(AppendOrKeep(std::as_bytes(std::span(&prefix, 1))));
  HS_RETURN_IF_ERROR(AppendOrKeep(payload));
  if (had_backlog) return {};  // nothing new in the ring
  ring_.Commit();
  consumer_->Ring();
  return HasBacklog() ? Flush().status() : Status();
}

Status FrameWriter::AppendOrKeep(std::span<const std::byte> bytes) {
  if (!HasBacklog()) {
    Result<size_t> appended = ring_.Append(bytes);
    if (!appended.ok()) return appended.status();
    bytes = bytes.subspan(*appended);
  }
  backlog_.insert(backlog_.end(), bytes.begin(), bytes.end());
  return {};
}

Result<bool> FrameWriter::Flush() {
  if (!HasBacklog()) return false;
  Result<size_t> moved = AppendBacklog();
  if (!moved.ok()) return moved.status();
  size_t total = *moved;
  if (HasBacklog()) {
    // From now on the consumer rings. Check once more, because it may have freed space before it
    // saw the flag.
    ring_.SetWaits(true);
    moved = AppendBacklog();
    if (!moved.ok()) return moved.status();
    total += *moved;
  }
  if (!HasBacklog()) ring_.SetWaits(false);
  if (total == 0) return false;
  ring_.Commit();
  consumer_->Ring();
  return true;
}

Result<size_t> FrameWriter::AppendBacklog() {
  Result<size_t> appended = ring_.Append(std::span(backlog_).subspan(backlog_begin_));
  if (!appended.ok()) return appended;
  backlog_begin_ += *appended;
  if (backlog_begin_ * 2 >= backlog_.size()) {
    backlog_.erase(backlog_.begin(), backlog_.begin() + static_cast<ptrdiff_t>(backlog_begin_));
    backlog_begin_ = 0;
  }
  return appended;
}

Result<const Frame*> FrameReader::Next() {
  const size_t had = prefix_have_ + payload_have_;
  Result<bool> whole = ReadPrefix();
  if (whole.ok() && *whole) whole = ReadPayload();
  if (!whole.ok()) return whole.status();
  if (prefix_have_ + payload_have_ != had && ring_.Commit()) producer_->Ring();
  if (!*whole) return static_cast<const Frame*>(nullptr);
  prefix_have_ = 0;
  payload_have_ = 0;
  return static_cast<const Frame*>(&frame_);
}

Result<bool> FrameReader::ReadPrefix() {
  if (prefix_have_ == sizeof(prefix_)) return true;
  auto bytes = std::as_writable_bytes(std::span(&prefix_, 1));
  Result<size_t> read = ring_.Read(bytes.subspan(prefix_have_));
  if (!read.ok()) return read.status();
  prefix_have_ += *read;
  if (prefix_have_ < sizeof(prefix_)) return false;
  if (prefix_.payload_bytes > kMaxMessageBytes || prefix_.reserved != 0) {
    return Status::Protocol("invalid control frame: kind " + std::to_string(prefix_.kind) + ", " +
                            std::to_string(prefix_.payload_bytes) + " bytes");
  }
  frame_.header = {static_cast<FrameKind>(prefix_.kind),
                   {prefix_.process_set, prefix_.incarnation}};
  frame_.payload.resize(prefix_.payload_bytes);
  return true;
}

Result<bool> FrameReader::ReadPayload() {
  if (frame_.payload.empty()) return true;
  Result<size_t> read = ring_.Read(std::span(frame_.payload).subspan(payload_have_));
  if (!read.ok()) return read.status();
  payload_have_ += *read;
  return payload_have_ == frame_.payload.size();
}

}  // namespace horoscale
