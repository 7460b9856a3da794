// Every member has a representative on each host, which folds the host's values of the rows that
// the member owns. A chunk contains a piece of every member's stream and passes through two phases:
//
//   contribution  within the host: to each representative the pieces that it folds
//   partial       to the owners: the representatives' folds, in the type on the wire
//
// With one member on every host there is no contribution.
#include "collectives/hosts_reducescatter.h"

#include <algorithm>
#include <utility>

#include "collectives/fold_loop.h"
#include "collectives/hosts_allreduce.h"
#include "collectives/pipeline.h"

namespace horoscale {
namespace {

class HostsReducescatter : public FoldLoop {
 public:
  HostsReducescatter(Exchange& exchange, HostGroups hosts, std::vector<uint32_t> participants,
                     const Reduction& reduction, std::optional<DataType> wire,
                     std::vector<SegmentMap> streams, Pieces pieces, Pipeline pipeline)
      : FoldLoop(exchange, std::move(participants), pipeline.rounds(), reduction.dtype),
        in_host_(InHost(reduction, wire)),
        between_hosts_(IntoTensors(BetweenHosts(reduction, wire), reduction.dtype)),
        streams_(std::move(streams)),
        hosts_(std::move(hosts)),
        pieces_(pieces),
        pipeline_(std::move(pipeline)),
        banks_(exchange.banks()),
        has_contribution_(hosts_.most() > 1),
        host_(hosts_.HostOf(self())),
        locals_(hosts_.members(host_)),
        contribution_place_(size()),
        partial_place_(size()),
        extents_(size()),
        partials_(banks_) {
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      representatives_.push_back(hosts_.RepresentativeOf(self(), host));
    }
    for (uint32_t owner = 0; owner < size(); ++owner) {
      if (streams_[owner].bytes() > 0) owners_.push_back(owner);
    }
    SetPlaces(partial_place_);
    std::stable_sort(owners_.begin(), owners_.end(), [this](uint32_t a, uint32_t b) {
      return std::pair(pieces_.GroupOf(a), FoldedBy(a)) <
             std::pair(pieces_.GroupOf(b), FoldedBy(b));
    });
    SetPlaces(contribution_place_);
  }

 private:
  // Places the owners of a group consecutively, in the order of owners_.
  void SetPlaces(std::vector<int64_t>& places) const {
    int64_t next = 0;
    for (size_t i = 0; i < owners_.size(); ++i) {
      if (i > 0 && pieces_.GroupOf(owners_[i]) != pieces_.GroupOf(owners_[i - 1])) next = 0;
      places[owners_[i]] = next;
      next += pieces_.bytes;
    }
  }

  uint32_t FoldedBy(uint32_t owner) const { return hosts_.RepresentativeOf(owner, host_); }

  ByteRange Piece(int64_t chunk, uint32_t owner) const {
    return pieces_.Of(chunk, owner, streams_[owner].bytes());
  }
  // The size of this many of the tensors' bytes in partials.
  int64_t OnWire(int64_t bytes) const { return BytesIn(between_hosts_.dtype, bytes); }
  bool Folds(int64_t chunk, uint32_t owner, uint32_t local) const {
    return FoldedBy(owner) == local && Piece(chunk, owner).bytes > 0;
  }

  bool Send(int64_t round) override {
    const auto [phase, chunk] = pipeline_.At(round);
    return has_contribution_ && phase == 0 ? SendContribution(round, chunk)
                                           : SendPartial(round, chunk);
  }

  // Everything that one representative folds is contiguous, so that it is one extent.
  bool SendContribution(int64_t round, int64_t chunk) {
    const auto is_sent = [&](uint32_t owner) {
      return FoldedBy(owner) != self() && Piece(chunk, owner).bytes > 0;
    };
    if (std::none_of(owners_.begin(), owners_.end(), is_sent)) return true;
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    std::fill(extents_.begin(), extents_.end(), Exchange::Extent{});
    int64_t end = 0;
    for (uint32_t owner : owners_) {
      if (!is_sent(owner)) continue;
      const ByteRange piece = Piece(chunk, owner);
      const int64_t offset = contribution_place_[owner];
      streams_[owner].Gather(bank + offset, piece.first, piece.bytes);
      end = offset + piece.bytes;
      Exchange::Extent& extent = extents_[FoldedBy(owner)];
      if (extent.bytes == 0) extent.offset = static_cast<size_t>(offset);
      extent.bytes = static_cast<size_t>(end) - extent.offset;
    }
    PublishExtents(round, end, extents_);
    return true;
  }

  bool SendPartial(int64_t round, int64_t chunk) {
    const auto is_folded = [&](uint32_t owner) { return Folds(chunk, owner, self()); };
    if (std::any_of(owners_.begin(), owners_.end(), is_folded)) {
      std::byte* bank = Reserve(round);
      if (bank == nullptr) return false;
      const int64_t contribution = has_contribution_ ? pipeline_.RoundOf(0, chunk) : round;
      if (!PeekAll(contribution, locals_)) return false;
      std::fill(extents_.begin(), extents_.end(), Exchange::Extent{});
      for (uint32_t owner : owners_) {
        if (!is_folded(owner)) continue;
        const ByteRange piece = Piece(chunk, owner);
        const int64_t offset = OnWire(partial_place_[owner]);
        FoldRange(in_host_, streams_[owner], piece.first, piece.bytes, contribution_place_[owner],
                  bank + offset);
        if (owner == self()) continue;
        extents_[owner] = {static_cast<size_t>(offset), static_cast<size_t>(OnWire(piece.bytes))};
      }
      PublishExtents(round, OnWire(chunk_bytes()), extents_);
      partials_[static_cast<size_t>(chunk) % banks_] = bank;
    }
    ++folded_chunks_;
    return true;
  }

  Progress Receive(int64_t round) override {
    const auto [phase, chunk] = pipeline_.At(round);
    if (has_contribution_ && phase == 0) {
      return chunk < folded_chunks_ ? Progress::kDone : Progress::kIdle;
    }
    const ByteRange piece = Piece(chunk, self());
    if (piece.bytes == 0) return Progress::kDone;
    const std::byte* own = partials_[static_cast<size_t>(chunk) % banks_];
    if (!PeekAll(round, representatives_, own)) return Progress::kIdle;
    FoldRange(between_hosts_, streams_[self()], piece.first, piece.bytes, partial_place_[self()],
              nullptr);
    return Progress::kDone;
  }

  const Reduction in_host_;
  const Reduction between_hosts_;
  const std::vector<SegmentMap> streams_;
  const HostGroups hosts_;
  const Pieces pieces_;
  const Pipeline pipeline_;
  const size_t banks_;
  const bool has_contribution_;
  const uint32_t host_;                    // of this member
  const std::vector<uint32_t>& locals_;    // its members
  std::vector<uint32_t> representatives_;  // of this member, by host
  std::vector<uint32_t> owners_;           // of rows, by group and representative on this host
  // Offset in a chunk of the piece of each owner's stream; for partials, equal on all hosts.
  std::vector<int64_t> contribution_place_;
  std::vector<int64_t> partial_place_;
  std::vector<Exchange::Extent> extents_;
  // In this member's banks, by chunk: not reused before the round has been received.
  std::vector<const std::byte*> partials_;
  int64_t folded_chunks_ = 0;
};

}  // namespace

std::unique_ptr<Collective> MakeHostsReducescatter(Exchange& exchange, HostGroups hosts,
                                                   std::vector<uint32_t> participants,
                                                   const Reduction& reduction,
                                                   std::optional<DataType> wire,
                                                   std::vector<SegmentMap> streams) {
  const Pieces pieces = PiecesOf(exchange, streams);
  Pipeline pipeline(hosts.most() > 1 ? 2 : 1, pieces.chunks, exchange.banks());
  if (!std::binary_search(participants.begin(), participants.end(), exchange.self())) {
    return std::make_unique<Bystander>(exchange, pipeline.rounds());
  }
  return std::make_unique<HostsReducescatter>(exchange, std::move(hosts), std::move(participants),
                                              reduction, wire, std::move(streams), pieces,
                                              std::move(pipeline));
}

}  // namespace horoscale
