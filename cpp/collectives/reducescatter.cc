// Reduce-scatter and reduce within a host: each member publishes the values that others own, and
// the owners fold them. One round per chunk. Members on several hosts: see hosts_reducescatter.h
// and encoded_reducescatter.h. Inputs of a reduce-scatter in memory that all can access: see
// direct_reducescatter.h.
//
// The parts of all items that a member owns form one sequence of bytes, its stream. A round carries
// a piece of every stream. In a reduce to a root, the root owns all bytes.
#include <algorithm>
#include <utility>

#include "collectives/direct_allreduce.h"
#include "collectives/direct_reducescatter.h"
#include "collectives/encoded_fold.h"
#include "collectives/encoded_reducescatter.h"
#include "collectives/fold_loop.h"
#include "collectives/hosts_reducescatter.h"

namespace horoscale {
namespace {

class Reducescatter : public FoldLoop {
 public:
  // streams[m] is what member m owns.
  Reducescatter(Exchange& exchange, std::vector<uint32_t> participants, const Reduction& reduction,
                std::vector<SegmentMap> streams, Pieces pieces)
      : FoldLoop(exchange, std::move(participants), pieces.chunks, reduction.dtype),
        reduction_(reduction),
        streams_(std::move(streams)),
        pieces_(pieces),
        extents_(size()) {}

 private:
  ByteRange Piece(int64_t round, uint32_t owner) const {
    return pieces_.Of(round, owner, streams_[owner].bytes());
  }

  bool HasPieceForOthers(int64_t round) const {
    return std::any_of(peers().begin(), peers().end(),
                       [&](uint32_t owner) { return Piece(round, owner).bytes > 0; });
  }

  // The pieces in a chunk are in the order of their owners; the sender's own place stays unused.
  bool Send(int64_t round) override {
    if (!HasPieceForOthers(round)) return true;
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    int64_t offset = 0;
    for (uint32_t owner = 0; owner < size(); ++owner) {
      const ByteRange piece = Piece(round, owner);
      if (owner != self()) {
        streams_[owner].Gather(bank + offset, piece.first, piece.bytes);
        extents_[owner] = {static_cast<size_t>(offset), static_cast<size_t>(piece.bytes)};
      }
      offset += piece.bytes;
    }
    PublishExtents(round, offset, extents_);
    return true;
  }

  Progress Receive(int64_t round) override {
    const ByteRange piece = Piece(round, self());
    if (piece.bytes == 0) return Progress::kDone;
    if (!PeekAll(round, participants())) return Progress::kIdle;
    int64_t offset = 0;
    for (uint32_t owner = 0; owner < self(); ++owner) offset += Piece(round, owner).bytes;
    FoldRange(reduction_, streams_[self()], piece.first, piece.bytes, offset, nullptr);
    return Progress::kDone;
  }

  const Reduction reduction_;
  const std::vector<SegmentMap> streams_;
  const Pieces pieces_;
  std::vector<Exchange::Extent> extents_;
};

// The member's rows of all items; only those of `self` have a destination.
std::vector<Segment> StreamOf(const ReducescatterArgs& args, uint32_t size, uint32_t member,
                              uint32_t self) {
  std::vector<Segment> stream;
  for (const ReducescatterItem& item : args.items) {
    const RowRange rows = args.RowsFor(item, size, member);
    const int64_t bytes = rows.count * item.row_bytes;
    if (bytes == 0) continue;
    stream.push_back({.in = item.in + rows.first * item.row_bytes,
                      .out = member == self ? item.out : nullptr,
                      .bytes = bytes});
  }
  return stream;
}

// streams[m] is what participant m owns; absent members own nothing.
std::unique_ptr<Collective> MakeFoldByOwners(Exchange& exchange, std::vector<uint32_t> participants,
                                             const Reduction& reduction,
                                             std::optional<DataType> wire,
                                             std::vector<SegmentMap> streams) {
  if (!exchange.hosts().empty()) {
    HostGroups hosts(exchange, participants);
    if (hosts.count() > 1) {
      return MakeHostsReducescatter(exchange, std::move(hosts), std::move(participants), reduction,
                                    wire, std::move(streams));
    }
  }
  const Pieces pieces = PiecesOf(exchange, streams);
  if (!std::binary_search(participants.begin(), participants.end(), exchange.self())) {
    return std::make_unique<Bystander>(exchange, pieces.chunks);
  }
  return std::make_unique<Reducescatter>(exchange, std::move(participants), reduction,
                                         std::move(streams), pieces);
}

std::unique_ptr<Collective> MakeChunkedReducescatter(Exchange& exchange, ReducescatterArgs args) {
  const uint32_t size = exchange.size();
  if (!exchange.hosts().empty() && IsEncoded(args.encoding, args.reduction)) {
    HostGroups hosts(exchange, Participants(exchange, {}));
    if (hosts.count() > 1) return MakeEncodedReducescatter(exchange, std::move(hosts), args);
  }
  std::vector<SegmentMap> streams;
  streams.reserve(size);
  for (uint32_t member = 0; member < size; ++member) {
    streams.emplace_back(StreamOf(args, size, member, exchange.self()));
  }
  return MakeFoldByOwners(exchange, Participants(exchange, {}), args.reduction,
                          args.encoding.type(), std::move(streams));
}

std::unique_ptr<Collective> MakeRootFold(Exchange& exchange, AllreduceArgs args) {
  std::vector<SegmentMap> streams(exchange.size());
  streams[*args.root] = SegmentMap(std::move(args.segments));
  return MakeFoldByOwners(exchange, Participants(exchange, args.absent), args.reduction,
                          args.encoding.type(), std::move(streams));
}

}  // namespace

Pieces PiecesOf(const Exchange& exchange, std::span<const SegmentMap> streams) {
  int64_t owners = 0;
  int64_t end = 0;  // one past the last of them
  int64_t longest = 0;
  for (size_t owner = 0; owner < streams.size(); ++owner) {
    if (streams[owner].bytes() == 0) continue;
    ++owners;
    end = static_cast<int64_t>(owner) + 1;
    longest = std::max(longest, streams[owner].bytes());
  }
  const auto lines = static_cast<int64_t>(exchange.chunk_bytes()) / kLineBytes;
  if (owners > lines) owners = end;  // groups contain adjacent members, with or without data
  owners = std::max<int64_t>(owners, 1);
  Pieces pieces;
  pieces.groups = DivideUp(owners, lines);
  pieces.group_owners = DivideUp(owners, pieces.groups);
  pieces.bytes = lines / pieces.group_owners * kLineBytes;
  pieces.chunks = DivideUp(longest, pieces.bytes) * pieces.groups;
  return pieces;
}

std::unique_ptr<Collective> MakeReducescatter(Exchange& exchange, ReducescatterArgs args) {
  if (exchange.size() == 1) {
    return std::make_unique<AloneFold>(exchange, args.reduction, StreamOf(args, 1, 0, 0));
  }
  if (MayBeDirect(exchange, args)) {
    return MakeDirectReducescatter(exchange, std::move(args), MakeChunkedReducescatter);
  }
  return MakeChunkedReducescatter(exchange, std::move(args));
}

// The root folds everything, or the partials of the hosts. In memory that all can access, the
// members fold slices: see direct_allreduce.h.
std::unique_ptr<Collective> MakeReduce(Exchange& exchange, AllreduceArgs args) {
  if (exchange.self() != *args.root) {
    for (Segment& segment : args.segments) segment.out = nullptr;  // unchanged, even if it is given
  }
  const std::vector<uint32_t> participants = Participants(exchange, args.absent);
  if (participants.size() == 1) {
    if (participants.front() != exchange.self()) return std::make_unique<Bystander>(exchange, 0);
    return std::make_unique<AloneFold>(exchange, args.reduction, std::move(args.segments));
  }
  const bool spans_hosts =
      !exchange.hosts().empty() && HostGroups(exchange, participants).count() > 1;
  if (!spans_hosts && MayBeDirect(exchange, args, BytesOf(args.segments))) {
    return MakeDirectAllreduce(exchange, std::move(args), MakeRootFold);
  }
  return MakeRootFold(exchange, std::move(args));
}

}  // namespace horoscale
