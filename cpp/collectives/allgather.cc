// Allgather: members first exchange their numbers of rows, then publish their rows chunk by chunk.
// Each member copies all rows to its results.
//
// A member's contributions to all items form one sequence of bytes, its stream. A stream is sent to
// each other host only once: to the member's representative there, which publishes it again on its
// own host. So a chunk of all streams passes through two phases (publish, forward), or one if no
// host has members to forward to. If a member would have to forward for more members than fit into
// a chunk, the members publish in groups, each in its own chunks.
//
// Members that can access each other's memory announce, with their numbers of rows, where their
// rows are, and large ones are read from there: see direct_movement.h.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "collectives/counted_loop.h"
#include "collectives/direct_movement.h"
#include "collectives/host_groups.h"
#include "collectives/pipeline.h"
#include "collectives/segment_map.h"
#include "collectives/unequal.h"

namespace horoscale {
namespace {

// The announcement of where this member's rows of each item are, as two words, and whether it can
// read private memory; empty if members can't access each other's memory.
std::vector<int64_t> SayPlaces(const Exchange& exchange, const std::vector<AllgatherItem>& items) {
  if (items.empty() || !HasReachableMemory(exchange)) return {};
  std::vector<Input> inputs;
  inputs.reserve(items.size());
  for (const AllgatherItem& item : items) inputs.push_back({item.in, item.rows * item.row_bytes});
  std::vector<int64_t> words;
  words.reserve(2 * items.size() + 1);
  for (const Place& place : PlacesOf(exchange, inputs)) {
    words.push_back(place.offset);
    words.push_back(std::bit_cast<int64_t>(place.address));
  }
  words.push_back(exchange.shared_memory()->ReadsPrivate() ? 1 : 0);
  return words;
}

class Allgather : public CountedLoop {
 public:
  Allgather(Exchange& exchange, const AllgatherArgs& args)
      : CountedLoop(exchange, "allgather", args.items, SayPlaces(exchange, args.items)),
        results_(args.results),
        hosts_(exchange, participants()),
        host_(hosts_.HostOf(self())),
        locals_(hosts_.members(host_)),
        has_forward_(hosts_.count() > 1 && hosts_.most() > 1),
        banks_(exchange.banks()),
        forwarded_by_(size()),
        extents_(size()) {
    for (uint32_t member = 0; member < size(); ++member) {
      if (hosts_.HostOf(member) == host_) continue;
      forwarded_by_[hosts_.RepresentativeOf(member, host_)].push_back(member);
    }
    forwarded_.reserve(size());
    const int64_t lines = chunk_bytes() / kLineBytes;
    const int64_t most = MostForwarded();
    groups_ = most <= lines ? 1 : DivideUp(size(), lines);
    group_members_ = static_cast<uint32_t>(DivideUp(size(), groups_));
    piece_bytes_ = lines / std::min<int64_t>(most, group_members_) * kLineBytes;
  }

 private:
  enum Phase : int64_t { kPublish, kForward };

  // The maximum number of members for which one member of any host forwards. It depends only on the
  // sizes of the hosts, and few of these differ.
  int64_t MostForwarded() const {
    std::map<int64_t, int64_t> hosts_of_size;
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      ++hosts_of_size[static_cast<int64_t>(hosts_.members(host).size())];
    }
    int64_t most = 1;
    for (const auto& [size, count] : hosts_of_size) {
      if (!has_forward_) break;
      int64_t forwarded = -1;  // by a host's first member, which has the most; its own host does
                               // not count
      for (const auto& [other, others] : hosts_of_size) forwarded += others * DivideUp(other, size);
      most = std::max(most, forwarded);
    }
    return most;
  }

  // The part of `total` bytes with this index.
  static ByteRange PartOf(int64_t total, int64_t index, int64_t part_bytes) {
    const int64_t first = index * part_bytes;
    return {first, std::clamp(total - first, int64_t{0}, part_bytes)};
  }
  // The range of a member's stream that a chunk carries.
  ByteRange Piece(int64_t chunk, uint32_t member) const {
    if (groups_ > 1 && member / group_members_ != chunk % groups_) return {};
    return PartOf(streams_[member].bytes(), chunk / groups_, piece_bytes_);
  }
  Pipeline::Place At(int64_t round) const { return pipeline_.At(round - count_rounds()); }

  bool Send(int64_t round) override {
    if (round < count_rounds()) return SendCounts(round);
    const auto [phase, chunk] = At(round);
    return phase == kPublish ? SendOwn(round, chunk) : Forward(round, chunk);
  }

  bool SendOwn(int64_t round, int64_t chunk) {
    const ByteRange piece = Piece(chunk, self());
    if (piece.bytes == 0) return true;
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    streams_[self()].Gather(bank, piece.first, piece.bytes);
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      SetExtent(hosts_.RepresentativeOf(self(), host), piece.bytes);
    }
    PublishToHost(round, piece.bytes);
    return true;
  }

  // Forwards what this member received from other hosts, and copies it to its own result.
  bool Forward(int64_t round, int64_t chunk) {
    if (!PeekForwarded(chunk)) return false;
    const bool publishes = !forwarded_.empty() && locals_.size() > 1;
    std::byte* bank = publishes ? Reserve(round) : nullptr;
    if (publishes && bank == nullptr) return false;
    int64_t offset = 0;
    for (const auto& [member, received] : forwarded_) {
      const ByteRange piece = Piece(chunk, member);
      if (publishes) std::memcpy(bank + offset, received, static_cast<size_t>(piece.bytes));
      streams_[member].Scatter(received, piece.first, piece.bytes);
      offset += piece.bytes;
    }
    if (publishes) {
      std::fill(extents_.begin(), extents_.end(), Exchange::Extent{});
      PublishToHost(round, offset);
    }
    ++forwarded_chunks_;
    return true;
  }

  // Finds the pieces that this member forwards; false until all have arrived.
  bool PeekForwarded(int64_t chunk) {
    forwarded_.clear();
    const int64_t published = count_rounds() + pipeline_.RoundOf(kPublish, chunk);
    for (uint32_t member : forwarded_by_[self()]) {
      if (Piece(chunk, member).bytes == 0) continue;
      const std::byte* received = Peek(published, member);
      if (received == nullptr) return false;
      forwarded_.push_back({member, received});
    }
    return true;
  }

  void PublishToHost(int64_t round, int64_t bytes) {
    for (uint32_t member : locals_) SetExtent(member, bytes);
    PublishExtents(round, bytes, extents_);
  }
  void SetExtent(uint32_t member, int64_t bytes) {
    extents_[member].bytes = static_cast<size_t>(bytes);
  }

  Progress Receive(int64_t round) override {
    if (round < count_rounds()) return ReceiveCounts(round);
    const auto [phase, chunk] = At(round);
    return phase == kPublish ? ReceivePieces(round, chunk) : ReceiveForwarded(round, chunk);
  }

  // Forwarded pieces were read when they were forwarded.
  Progress ReceivePieces(int64_t round, int64_t index) {
    const Progress progress = ReceiveFromEach(
        round,
        [&](uint32_t peer) {
          return (!has_forward_ || hosts_.HostOf(peer) == host_) && Piece(index, peer).bytes > 0;
        },
        [&](uint32_t peer, const std::byte* bytes) {
          const ByteRange piece = Piece(index, peer);
          streams_[peer].Scatter(bytes, piece.first, piece.bytes);
        });
    if (progress != Progress::kDone || !has_forward_) return progress;
    return index < forwarded_chunks_ ? Progress::kDone : Progress::kIdle;
  }

  Progress ReceiveForwarded(int64_t round, int64_t index) {
    return ReceiveFromEach(
        round,
        [&](uint32_t peer) {
          const std::vector<uint32_t>& members = forwarded_by_[peer];
          return std::any_of(members.begin(), members.end(),
                             [&](uint32_t member) { return Piece(index, member).bytes > 0; });
        },
        [&](uint32_t peer, const std::byte* bytes) {
          for (uint32_t member : forwarded_by_[peer]) {
            const ByteRange piece = Piece(index, member);
            streams_[member].Scatter(bytes, piece.first, piece.bytes);
            bytes += piece.bytes;
          }
        });
  }

  // Copies the member's own rows to the results.
  bool LocalWork() override {
    if (streams_.empty()) return false;
    const ByteRange part = PartOf(streams_[self()].bytes(), copied_chunks_, chunk_bytes());
    if (part.bytes == 0) return false;
    streams_[self()].CopyThrough(part.first, part.bytes);
    ++copied_chunks_;
    return true;
  }

  Result<int64_t> MoreRounds() override {
    if (!streams_.empty()) return int64_t{0};
    HS_RETURN_IF_ERROR(CheckCounts());
    HS_RETURN_IF_ERROR(LayOut());
    if (IsDirect()) {
      HS_RETURN_IF_ERROR(GoOnDirectly());
      return int64_t{0};
    }
    int64_t longest = 0;
    for (const SegmentMap& stream : streams_) longest = std::max(longest, stream.bytes());
    const int64_t chunks = peers().empty() ? 0 : DivideUp(longest, piece_bytes_) * groups_;
    pipeline_ = Pipeline(has_forward_ ? 2 : 1, chunks, banks_);
    return pipeline_.rounds();
  }

  Place PlaceIn(uint32_t member, size_t item) const {
    const std::span<const int64_t> words = Remarks(member).subspan(2 * item);
    return {words[0], std::bit_cast<uint64_t>(words[1])};
  }

  bool IsDirect() {
    if (items().empty() || !HasReachableMemory(exchange())) return false;
    int64_t bytes = 0;
    for (const SegmentMap& stream : streams_) bytes += stream.bytes();
    if (bytes < LeastDirectBytes(exchange())) return false;
    bool all_shared = true;
    bool all_readable = true;
    for (uint32_t member = 0; member < size(); ++member) {
      all_readable &= Remarks(member).back() != 0;
      for (size_t i = 0; i < items().size(); ++i) {
        if (Rows(member, i) * items()[i].row_bytes > 0) {
          all_shared &= PlaceIn(member, i).is_shared();
          all_readable &= PlaceIn(member, i).is_readable();
        }
      }
    }
    return all_shared || all_readable;
  }

  Status GoOnDirectly() {
    MovementArgs movement;
    for (size_t i = 0; i < items().size(); ++i) {
      std::byte* to = places_[i];
      for (uint32_t member = 0; member < size(); ++member) {
        const int64_t bytes = Rows(member, i) * items()[i].row_bytes;
        if (bytes == 0) continue;
        if (member == self()) {
          movement.own.push_back({items()[i].in, to, bytes});
        } else {
          Result<Move> move = MoveFrom(exchange(), member, PlaceIn(member, i), 0, to, bytes);
          if (!move.ok()) return move.status();
          movement.moves.push_back(*move);
        }
        to += bytes;
      }
    }
    if (!movement.own.empty()) movement.readers = peers();
    GoOnAs(MakeDirectMovement(exchange(), std::move(movement)));
    return Status::Ok();
  }

  Status LayOut() {
    std::vector<std::vector<Segment>> streams(size());
    results_->clear();
    results_->resize(items().size());
    for (size_t i = 0; i < items().size(); ++i) {
      AllgatherResult& result = (*results_)[i];
      for (uint32_t member = 0; member < size(); ++member) result.rows.push_back(Rows(member, i));
      Result<std::byte*> place =
          PlaceResult("allgather", items()[i].row_bytes, items()[i].room, &result);
      if (!place.ok()) return place.status();
      std::byte* out = *place;
      places_.push_back(out);
      for (uint32_t member = 0; member < size(); ++member) {
        const int64_t part = result.rows[member] * items()[i].row_bytes;
        if (part == 0) continue;
        streams[member].push_back({member == self() ? items()[i].in : nullptr, out, part});
        out += part;
      }
    }
    for (std::vector<Segment>& stream : streams) streams_.emplace_back(std::move(stream));
    return Status::Ok();
  }

  std::vector<AllgatherResult>* const results_;
  const HostGroups hosts_;
  const uint32_t host_;                  // of this member
  const std::vector<uint32_t>& locals_;  // its members
  const bool has_forward_;
  const uint32_t banks_;
  // For each member of this host: the members of other hosts that it represents.
  std::vector<std::vector<uint32_t>> forwarded_by_;
  int64_t groups_ = 1;               // of members, which publish in different chunks
  uint32_t group_members_ = 0;       // of one
  int64_t piece_bytes_ = 0;          // of a stream that a chunk carries
  std::vector<SegmentMap> streams_;  // by member, once the counts are known
  std::vector<std::byte*> places_;   // of the results, once the counts are known
  Pipeline pipeline_;                // of the rounds after the counts
  std::vector<Exchange::Extent> extents_;
  struct Received {
    uint32_t member;
    const std::byte* bytes;
  };
  std::vector<Received> forwarded_;  // of the next chunk to forward
  int64_t forwarded_chunks_ = 0;
  int64_t copied_chunks_ = 0;  // of the member's own stream
};

}  // namespace

std::unique_ptr<Collective> MakeAllgather(Exchange& exchange, AllgatherArgs args) {
  return std::make_unique<Allgather>(exchange, args);
}

}  // namespace horoscale
