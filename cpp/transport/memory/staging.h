// Staging: transfers a large message between private memory of two ranks of a host, copied by both
// concurrently.
//
// The receiver reads the message in place, from its end backwards. Meanwhile the sender copies it,
// from its beginning, into cells of its own shared memory, from which the receiver copies it. The
// two meet somewhere in between: the receiver skips pieces that it has read, and moving a piece
// twice is harmless. Neither side waits for the other. If the sender is busy, the receiver reads
// everything.
//
// Neither rank writes into the other's tensors. If one exits or aborts, memory that was returned to
// its caller is never written.
//
// An area serves one message at a time; each is a *use*. Every counter has one writer and contains
// the number of its use, so counters need not be reset, and values of earlier uses are ignored
// (tests/model/staging.pml).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace horoscale {

// For smaller messages, the receiver alone is as fast.
inline constexpr size_t kLeastStagedBytes = 32 << 10;

// The start of an area; zeros are an unused area. The cells follow.
struct StagingControl {
  // The use in the high half, the number of pieces in the low half.
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

// How a message is divided into pieces; the same on both ranks.
class StagingPieces {
 public:
  explicit StagingPieces(size_t bytes);
  uint32_t count() const { return count_; }
  uint32_t cells() const { return static_cast<uint32_t>(kStagingCellsBytes / piece_bytes_); }
  size_t OffsetOf(uint32_t piece) const { return piece * piece_bytes_; }
  size_t BytesOf(uint32_t piece) const;
  // The cell for the piece.
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
  // Created after the receiver has announced this use. Only Step() reads `message`.
  StagingWriter(std::byte* area, uint32_t use, std::span<const std::byte> message);

  // Copies some pieces, if there is room and the receiver has not read them; returns whether it
  // copied any.
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

  // Created before the sender learns of the use, and after the previous use has ended here.
  StagingReader(std::byte* area, uint32_t use, std::span<std::byte> into);

  // Copies the staged pieces; returns the number of bytes.
  size_t TakeStaged();
  // The next part that the caller must read from the sender's memory: one piece, or several if the
  // sender is busy. Null if the sender has begun all missing pieces and `if_begun` is false.
  std::optional<Piece> NextUnread(bool if_begun);
  // Whether all pieces have been copied.
  bool IsDone() const { return taken_ == unread_; }
  // Whether there are missing pieces that the sender has not begun.
  bool LeavesSome() const;
  uint32_t use() const { return use_; }

 private:
  std::byte* area_;
  const uint32_t use_;
  const std::span<std::byte> into_;
  const StagingPieces pieces_;
  uint32_t taken_ = 0;
  uint32_t unread_;
  uint32_t alone_ = 0;  // number of reads since it last found staged pieces
};

}  // namespace horoscale
