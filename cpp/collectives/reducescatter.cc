// Reduce-scatter in a host: each member publishes what the others own; the owner folds. One round
// per chunk. Members on several hosts: see hosts_reducescatter.h.
//
// What a member owns of all items is one sequence of bytes, its stream. Streams of different
// members differ in length by a row per item at most. A round carries a piece of every stream.
#include <algorithm>
#include <utility>

#include "collectives/fold_loop.h"
#include "collectives/hosts_reducescatter.h"

namespace horoscale {
namespace {

class Reducescatter : public FoldLoop {
 public:
  // streams[m] is what member m owns.
  Reducescatter(Exchange& exchange, const Reduction& reduction, std::vector<SegmentMap> streams,
                Pieces pieces)
      : FoldLoop(exchange, Participants(exchange, {}), pieces.chunks, reduction.dtype),
        reduction_(reduction),
        streams_(std::move(streams)),
        piece_bytes_(pieces.bytes),
        extents_(size()) {}

 private:
  int64_t PieceBytes(int64_t round, uint32_t owner) const {
    return std::clamp(streams_[owner].bytes() - round * piece_bytes_, int64_t{0}, piece_bytes_);
  }

  // Pieces lie in a chunk in the order of their owners; the place of the sender's own stays unused.
  bool Send(int64_t round) override {
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    int64_t offset = 0;
    for (uint32_t owner = 0; owner < size(); ++owner) {
      const int64_t bytes = PieceBytes(round, owner);
      if (owner != self()) {
        streams_[owner].Gather(bank + offset, round * piece_bytes_, bytes);
        extents_[owner] = {static_cast<size_t>(offset), static_cast<size_t>(bytes)};
      }
      offset += bytes;
    }
    PublishExtents(round, offset, extents_);
    return true;
  }

  Progress Receive(int64_t round) override {
    const int64_t bytes = PieceBytes(round, self());
    if (bytes == 0) return Progress::kDone;
    if (!PeekAll(round, participants())) return Progress::kIdle;
    int64_t offset = 0;
    for (uint32_t owner = 0; owner < self(); ++owner) offset += PieceBytes(round, owner);
    FoldRange(reduction_, streams_[self()], round * piece_bytes_, bytes, offset, nullptr);
    return Progress::kDone;
  }

  const Reduction reduction_;
  const std::vector<SegmentMap> streams_;
  const int64_t piece_bytes_;
  std::vector<Exchange::Extent> extents_;
};

// The member's rows of all items; only those of `self` have somewhere to go.
std::vector<Segment> StreamOf(const ReducescatterArgs& args, uint32_t size, uint32_t member,
                              uint32_t self) {
  std::vector<Segment> stream;
  stream.reserve(args.items.size());
  for (const ReducescatterItem& item : args.items) {
    const RowRange rows = RowsOf(item.rows, size, member);
    const int64_t bytes = rows.count * item.row_bytes;
    if (bytes == 0) continue;
    stream.push_back({.in = item.in + rows.first * item.row_bytes,
                      .out = member == self ? item.out : nullptr,
                      .bytes = bytes});
  }
  return stream;
}

}  // namespace

Pieces PiecesOf(const Exchange& exchange, std::span<const SegmentMap> streams) {
  int64_t owners = 0;
  int64_t longest = 0;
  for (const SegmentMap& stream : streams) {
    owners += stream.bytes() > 0 ? 1 : 0;
    longest = std::max(longest, stream.bytes());
  }
  const auto lines = static_cast<int64_t>(exchange.chunk_bytes()) / kLineBytes;
  const int64_t bytes = lines / std::max<int64_t>(owners, 1) * kLineBytes;
  return {bytes, DivideUp(longest, bytes)};
}

std::unique_ptr<Collective> MakeReducescatter(Exchange& exchange, ReducescatterArgs args) {
  const uint32_t size = exchange.size();
  const uint32_t self = exchange.self();
  if (size == 1) {
    return std::make_unique<AloneFold>(exchange, args.reduction, StreamOf(args, 1, 0, 0));
  }
  std::vector<SegmentMap> streams;
  streams.reserve(size);
  for (uint32_t member = 0; member < size; ++member) {
    streams.emplace_back(StreamOf(args, size, member, self));
  }
  if (!exchange.hosts().empty()) {
    HostGroups hosts(exchange, Participants(exchange, {}));
    return MakeHostsReducescatter(exchange, std::move(hosts), args.reduction, args.wire,
                                  std::move(streams));
  }
  const Pieces pieces = PiecesOf(exchange, streams);
  return std::make_unique<Reducescatter>(exchange, args.reduction, std::move(streams), pieces);
}

}  // namespace horoscale
