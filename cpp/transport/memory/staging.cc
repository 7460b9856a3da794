#include "transport/memory/staging.h"

#include <algorithm>
#include <cstring>

namespace horoscale {
namespace {

// Limit per step of either side, so that other work gets its turn.
constexpr size_t kStepBytes = 256 << 10;

// After this many reads without the sender's help, a receiver reads larger pieces, because each
// read is a system call.
constexpr uint32_t kTriesAlone = 4;
constexpr size_t kMostAloneBytes = 256 << 10;

// Both ranks start concurrently, so small messages need small pieces.
size_t PieceBytes(size_t bytes) {
  if (bytes < 128 << 10) return 16 << 10;
  if (bytes < 512 << 10) return 32 << 10;
  return bytes < 8 << 20 ? 64 << 10 : 128 << 10;
}

StagingControl& ControlOf(std::byte* area) { return *reinterpret_cast<StagingControl*>(area); }

uint64_t Pack(uint32_t use, uint32_t pieces) { return uint64_t{use} << 32 | pieces; }

// Null if the counter belongs to another use.
std::optional<uint32_t> Load(const StagingControl::Counter& counter, uint32_t use) {
  const uint64_t value = counter.load();
  if (value >> 32 != use) return std::nullopt;
  return static_cast<uint32_t>(value);
}

}  // namespace

StagingPieces::StagingPieces(size_t bytes)
    : bytes_(bytes),
      piece_bytes_(PieceBytes(bytes)),
      count_(static_cast<uint32_t>((bytes + piece_bytes_ - 1) / piece_bytes_)) {}

size_t StagingPieces::BytesOf(uint32_t piece) const {
  return std::min(piece_bytes_, bytes_ - OffsetOf(piece));
}

StagingWriter::StagingWriter(std::byte* area, uint32_t use, std::span<const std::byte> message)
    : area_(area), use_(use), message_(message), pieces_(message.size()) {}

bool StagingWriter::Step() {
  StagingControl& control = ControlOf(area_);
  bool moved = false;
  for (size_t copied = 0; copied < kStepBytes;) {
    const auto unread = Load(control.unread, use_);
    const auto emptied = Load(control.emptied, use_);
    if (!unread || !emptied) return moved;  // the receiver has moved on to another message
    if (begun_ >= std::min(*unread, pieces_.count())) return moved;
    if (*emptied > begun_ || begun_ - *emptied >= pieces_.cells()) return moved;
    const size_t bytes = pieces_.BytesOf(begun_);
    control.begun.store(Pack(use_, begun_ + 1));
    std::memcpy(pieces_.CellOf(area_, begun_), message_.data() + pieces_.OffsetOf(begun_), bytes);
    control.staged.store(Pack(use_, ++begun_));
    copied += bytes;
    moved = true;
  }
  return moved;
}

StagingReader::StagingReader(std::byte* area, uint32_t use, std::span<std::byte> into)
    : area_(area), use_(use), into_(into), pieces_(into.size()), unread_(pieces_.count()) {
  ControlOf(area_).emptied.store(Pack(use_, 0));
  ControlOf(area_).unread.store(Pack(use_, unread_));
}

size_t StagingReader::TakeStaged() {
  StagingControl& control = ControlOf(area_);
  const uint32_t staged = std::min(Load(control.staged, use_).value_or(0), unread_);
  size_t copied = 0;
  while (taken_ < staged && copied < kStepBytes) {
    const size_t bytes = pieces_.BytesOf(taken_);
    std::memcpy(into_.data() + pieces_.OffsetOf(taken_), pieces_.CellOf(area_, taken_), bytes);
    control.emptied.store(Pack(use_, ++taken_));
    copied += bytes;
  }
  if (copied > 0) alone_ = 0;
  return copied;
}

std::optional<StagingReader::Piece> StagingReader::NextUnread(bool if_begun) {
  StagingControl& control = ControlOf(area_);
  const uint32_t begun = if_begun ? 0 : Load(control.begun, use_).value_or(0);
  const uint32_t first = std::max(begun, taken_);
  if (unread_ <= first) return std::nullopt;
  const size_t end = pieces_.OffsetOf(unread_ - 1) + pieces_.BytesOf(unread_ - 1);
  const size_t most = alone_++ < kTriesAlone ? 1 : kMostAloneBytes / pieces_.BytesOf(0);
  unread_ -= static_cast<uint32_t>(std::min<size_t>(most, unread_ - first));
  control.unread.store(Pack(use_, unread_));
  return Piece{pieces_.OffsetOf(unread_), end - pieces_.OffsetOf(unread_)};
}

bool StagingReader::LeavesSome() const {
  return Load(ControlOf(area_).begun, use_).value_or(0) < unread_;
}

}  // namespace horoscale
