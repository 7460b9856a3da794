// A large message from private memory of one rank to that of another one of its host, copied by
// both at once.
//
// The receiver reads the message where it lies, from its end on. Meanwhile the sender copies it,
// from its beginning on, into cells of its own shared memory, where the receiver takes it from.
// They meet somewhere: the receiver takes no piece that it has read, and a piece that both have
// moved does no harm. Neither waits for the other. If the sender does something else, the receiver
// reads all of it.
//
// Nobody writes into the other's tensors: whoever ends or gives up in the middle, no memory is
// written that is its caller's again.
//
// An area serves one message after the other, each a use of its own. Every counter has one writer
// and says which use it is of: nothing is reset, and what a use has left behind means nothing to
// the next one (tests/model/staging.pml).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace horoscale {

// Below that much the receiver alone is as fast.
inline constexpr size_t kLeastStagedBytes = 32 << 10;

// Start of an area; zero bytes are one without a use. The cells come after it.
struct StagingControl {
  // A use in the high half, pieces in the low half.
  using Counter = std::atomic<uint64_t>;
  alignas(64) Counter begun;    // sender's: pieces that it has copied here, or is copying
  Counter staged;               // sender's: those that are here
  alignas(64) Counter emptied;  // receiver's: those that it has taken from here
  Counter unread;               // receiver's: it has read this piece and all behind it itself
};
static_assert(StagingControl::Counter::is_always_lock_free);

inline constexpr size_t kStagingCellsOffset = 4096;
inline constexpr size_t kStagingCellsBytes = 1
                                             << 20;  // less is slower: what is taken is in L3 then
inline constexpr size_t kStagingAreaBytes = kStagingCellsOffset + kStagingCellsBytes;

// How a message is cut; the same on both ranks.
class StagingPieces {
 public:
  explicit StagingPieces(size_t bytes);
  uint32_t count() const { return count_; }
  uint32_t cells() const { return static_cast<uint32_t>(kStagingCellsBytes / piece_bytes_); }
  size_t OffsetOf(uint32_t piece) const { return piece * piece_bytes_; }
  size_t BytesOf(uint32_t piece) const;
  // The cell that the piece goes through.
  std::byte* CellOf(std::byte* area, uint32_t piece) const {
    return area + kStagingCellsOffset + piece % cells() * piece_bytes_;
  }

 private:
  size_t bytes_;
  size_t piece_bytes_;
  uint32_t count_;
};

class StagingWriter {
 public:
  // After the receiver has said that this use has begun. `message` is read by Step() alone.
  StagingWriter(std::byte* area, uint32_t use, std::span<const std::byte> message);

  // Copies some pieces, if there is room for them and the receiver hasn't read them; whether any.
  bool Step();
  uint32_t use() const { return use_; }

 private:
  std::byte* area_;
  const uint32_t use_;
  const std::span<const std::byte> message_;
  const StagingPieces pieces_;
  uint32_t begun_ = 0;
};

class StagingReader {
 public:
  struct Piece {
    size_t offset = 0;
    size_t bytes = 0;
    bool operator==(const Piece&) const = default;
  };

  // Before the sender is told of the use, and after the last one is over here.
  StagingReader(std::byte* area, uint32_t use, std::span<std::byte> into);

  // Takes what is staged; how many bytes.
  size_t TakeStaged();
  // What the caller has to read from the sender's memory next: a piece, or several if the sender
  // does something else. Null if the sender has begun with all that is missing, and `if_begun` is
  // false.
  std::optional<Piece> NextUnread(bool if_begun);
  // All has been taken or read.
  bool IsDone() const { return taken_ == unread_; }
  // Something is missing that the sender may still begin with.
  bool LeavesSome() const;
  uint32_t use() const { return use_; }

 private:
  std::byte* area_;
  const uint32_t use_;
  const std::span<std::byte> into_;
  const StagingPieces pieces_;
  uint32_t taken_ = 0;
  uint32_t unread_;
  uint32_t alone_ = 0;  // how often it has read since it found something staged
};

}  // namespace horoscale
