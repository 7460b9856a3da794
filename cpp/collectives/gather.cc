// Gather: members first exchange their numbers of rows, which determine the number of rounds. Then
// all but the root publish their rows chunk by chunk, for the root only.
//
// A member's contributions to all items form one sequence of bytes, its stream. It goes directly to
// the root, even from another host: forwarding would save nothing.
#include <algorithm>
#include <utility>

#include "collectives/counted_loop.h"
#include "collectives/segment_map.h"
#include "collectives/unequal.h"

namespace horoscale {
namespace {

class Gather : public CountedLoop {
 public:
  Gather(Exchange& exchange, GatherArgs args)
      : CountedLoop(exchange, "gather", std::move(args.items)),
        root_(args.root),
        results_(args.results),
        extents_(size()) {}

 private:
  // The range of a member's stream that a chunk carries.
  ByteRange PieceFrom(int64_t chunk, uint32_t member) const {
    const int64_t first = chunk * chunk_bytes();
    return {first, std::clamp(streams_[member].bytes() - first, int64_t{0}, chunk_bytes())};
  }

  bool Send(int64_t round) override {
    if (round < count_rounds()) return SendCounts(round);
    if (self() == root_) return true;
    const ByteRange piece = PieceFrom(round - count_rounds(), self());
    if (piece.bytes == 0) return true;
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    streams_[self()].Gather(bank, piece.first, piece.bytes);
    extents_[root_].bytes = static_cast<size_t>(piece.bytes);
    PublishExtents(round, piece.bytes, extents_);
    return true;
  }

  Progress Receive(int64_t round) override {
    if (round < count_rounds()) return ReceiveCounts(round);
    if (self() != root_) return Progress::kDone;
    const int64_t chunk = round - count_rounds();
    return ReceiveFromEach(
        round, [&](uint32_t peer) { return PieceFrom(chunk, peer).bytes > 0; },
        [&](uint32_t peer, const std::byte* bytes) {
          const ByteRange piece = PieceFrom(chunk, peer);
          streams_[peer].Scatter(bytes, piece.first, piece.bytes);
        });
  }

  // Copies the root's own part to the results.
  bool LocalWork() override {
    if (self() != root_ || streams_.empty()) return false;
    const ByteRange part = PieceFrom(copied_chunks_, self());
    if (part.bytes == 0) return false;
    streams_[self()].CopyThrough(part.first, part.bytes);
    ++copied_chunks_;
    return true;
  }

  Result<int64_t> MoreRounds() override {
    if (!streams_.empty()) return int64_t{0};
    HS_RETURN_IF_ERROR(CheckCounts());
    HS_RETURN_IF_ERROR(LayOut());
    int64_t longest = 0;
    for (uint32_t peer = 0; peer < size(); ++peer) {
      if (peer != root_) longest = std::max(longest, streams_[peer].bytes());
    }
    return DivideUp(longest, chunk_bytes());
  }

  // On other members than the root, streams of others have only lengths.
  Status LayOut() {
    std::vector<std::vector<Segment>> streams(size());
    results_->clear();
    results_->resize(items().size());
    for (size_t i = 0; i < items().size(); ++i) {
      AllgatherResult& result = (*results_)[i];
      result.rows.resize(size());
      std::byte* out = nullptr;
      if (self() == root_) {
        for (uint32_t member = 0; member < size(); ++member) {
          result.rows[member] = Rows(member, i);
        }
        Result<std::byte*> place =
            PlaceResult("gather", items()[i].row_bytes, items()[i].room, &result);
        if (!place.ok()) return place.status();
        out = *place;
      }
      for (uint32_t member = 0; member < size(); ++member) {
        const int64_t part = Rows(member, i) * items()[i].row_bytes;
        if (part == 0) continue;
        streams[member].push_back({member == self() ? items()[i].in : nullptr, out, part});
        if (out != nullptr) out += part;
      }
    }
    for (std::vector<Segment>& stream : streams) streams_.emplace_back(std::move(stream));
    return Status::Ok();
  }

  const uint32_t root_;
  std::vector<AllgatherResult>* const results_;
  std::vector<SegmentMap> streams_;  // by member, once the counts are known
  std::vector<Exchange::Extent> extents_;
  int64_t copied_chunks_ = 0;  // of the root's stream
};

}  // namespace

std::unique_ptr<Collective> MakeGather(Exchange& exchange, GatherArgs args) {
  return std::make_unique<Gather>(exchange, std::move(args));
}

}  // namespace horoscale
