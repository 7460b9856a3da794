// Alltoall: members first exchange the sizes that they will send, then publish chunks that contain
// a piece for every peer (shares.h).
//
// Members that can access each other's memory announce, with their numbers of rows, where the rows
// are, and large ones are read from there: see direct_movement.h.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "collectives/direct_movement.h"
#include "collectives/round_loop.h"
#include "collectives/shares.h"
#include "collectives/unequal.h"

namespace horoscale {
namespace {

struct PlacedAnnouncement {
  Announcement counts;
  // The fields below are sent only if members may access each other's memory.
  Place place;            // of the rows for this peer
  int64_t largest;        // bytes of the sender's largest part
  int16_t is_shared;      // whether all of its parts are in shared memory
  int16_t is_readable;    // or can be read in place
  int32_t reads_private;  // whether it can read private memory
};

size_t AnnouncementBytes(const Exchange& exchange) {
  return HasReachableMemory(exchange) ? sizeof(PlacedAnnouncement) : sizeof(Announcement);
}

class Alltoall : public RoundLoop {
 public:
  Alltoall(Exchange& exchange, AlltoallArgs args)
      : RoundLoop(exchange, Participants(exchange, {}),
                  Shares::OfAnnouncements(exchange, AnnouncementBytes(exchange)).rounds),
        args_(std::move(args)),
        announcements_(Shares::OfAnnouncements(exchange, AnnouncementBytes(exchange))),
        data_(Shares::OfData(exchange)),
        outgoing_(size()),
        incoming_(size()),
        received_(size()),
        extents_(size()) {
    int64_t end = 0;
    for (uint32_t member = 0; member < size(); ++member) {
      const int64_t first = end;
      if (!AddRowBytes(args_.splits[member], args_.row_bytes, &end)) {
        status_ =
            Status::InvalidArgument("alltoall: " + std::to_string(args_.splits[member]) +
                                    " rows for member " + std::to_string(member) + " can't be");
        break;
      }
      outgoing_[member] = {first, end - first};
      if (member != self()) said_.largest = std::max(said_.largest, end - first);
    }
    said_.counts.turns = DivideUp(said_.largest, data_.bytes);
    if (!status_.ok() || !HasReachableMemory(exchange)) return;
    said_.place = PlacesOf(exchange, {{args_.in, end}}).front();
    said_.is_shared = said_.place.is_shared() ? 1 : 0;
    said_.is_readable = said_.place.is_readable() ? 1 : 0;
    said_.reads_private = exchange.shared_memory()->ReadsPrivate() ? 1 : 0;
  }

 private:
  Shares::Piece Outgoing(int64_t round, uint32_t peer) const {
    return data_.PieceOf(outgoing_[peer], round - announcements_.rounds,
                         Distance(size(), self(), peer));
  }
  Shares::Piece Incoming(int64_t round, uint32_t peer) const {
    return data_.PieceOf(incoming_[peer], round - announcements_.rounds,
                         Distance(size(), peer, self()));
  }

  bool Send(int64_t round) override {
    if (round < announcements_.rounds) return Announce(round);
    const auto has_piece = [&](uint32_t peer) { return Outgoing(round, peer).part.bytes > 0; };
    if (std::none_of(peers().begin(), peers().end(), has_piece)) return true;
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    for (uint32_t peer : peers()) {
      const auto [offset, part] = Outgoing(round, peer);
      const auto bytes = static_cast<size_t>(part.bytes);
      if (bytes > 0) std::memcpy(bank + offset, args_.in + part.first, bytes);
      extents_[peer] = {static_cast<size_t>(offset), bytes};
    }
    PublishExtents(round, chunk_bytes(), extents_);
    return true;
  }

  bool Announce(int64_t round) {
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    for (uint32_t peer : peers()) {
      const int64_t offset = announcements_.Offset(round, Distance(size(), self(), peer));
      extents_[peer] = {};
      if (offset < 0) continue;
      const PlacedAnnouncement announcement = AnnouncementTo(peer);
      std::memcpy(bank + offset, &announcement, AnnouncementBytes(exchange()));
      extents_[peer] = {static_cast<size_t>(offset), AnnouncementBytes(exchange())};
    }
    const SealedChunks sealed = Sealed();
    PublishExtents(round, announcements_.peers * announcements_.bytes, extents_);
    return true;
  }

  PlacedAnnouncement AnnouncementTo(uint32_t member) const {
    PlacedAnnouncement announcement = said_;
    announcement.counts.rows = args_.splits[member];
    if (said_.place.is_shared()) announcement.place.offset += outgoing_[member].first;
    if (said_.place.address != 0) {
      announcement.place.address += static_cast<uint64_t>(outgoing_[member].first);
    }
    return announcement;
  }

  Progress Receive(int64_t round) override {
    if (round < announcements_.rounds) return ReceiveAnnouncements(round);
    return ReceiveFromEach(
        round, [&](uint32_t peer) { return Incoming(round, peer).part.bytes > 0; },
        [&](uint32_t peer, const std::byte* chunk) {
          const auto [offset, part] = Incoming(round, peer);
          std::memcpy(out_ + part.first, chunk + offset, static_cast<size_t>(part.bytes));
        });
  }

  Progress ReceiveAnnouncements(int64_t round) {
    const auto offset = [&](uint32_t peer) {
      return announcements_.Offset(round, Distance(size(), peer, self()));
    };
    return ReceiveFromEach(
        round, [&](uint32_t peer) { return offset(peer) >= 0; },
        [&](uint32_t peer, const std::byte* chunk) {
          std::memcpy(&received_[peer], chunk + offset(peer), AnnouncementBytes(exchange()));
        });
  }

  // Copies the member's own part to the result.
  bool LocalWork() override {
    if (!laid_out_ || copied_ == outgoing_[self()].bytes) return false;
    const int64_t bytes = std::min(chunk_bytes(), outgoing_[self()].bytes - copied_);
    std::memcpy(out_ + incoming_[self()].first + copied_,
                args_.in + outgoing_[self()].first + copied_, static_cast<size_t>(bytes));
    copied_ += bytes;
    return true;
  }

  Result<int64_t> MoreRounds() override {
    if (laid_out_) return int64_t{0};
    HS_RETURN_IF_ERROR(status_);
    received_[self()] = AnnouncementTo(self());
    int64_t end = 0;
    int64_t turns = 0;
    args_.result->rows.clear();
    for (uint32_t member = 0; member < size(); ++member) {
      const Announcement& announcement = received_[member].counts;
      const int64_t first = end;
      if (!AddRowBytes(announcement.rows, args_.row_bytes, &end) ||
          !data_.Plausible(announcement.turns, member == self() ? 0 : end - first)) {
        return Status::Protocol("alltoall: member " + std::to_string(member) + " announced " +
                                std::to_string(announcement.rows) + " rows of " +
                                std::to_string(args_.row_bytes) + " bytes in " +
                                std::to_string(announcement.turns) + " turns, which can't be");
      }
      incoming_[member] = {first, end - first};
      turns = std::max(turns, announcement.turns);
      args_.result->rows.push_back(announcement.rows);
    }
    Result<std::byte*> place = PlaceResult("alltoall", args_.row_bytes, args_.room, args_.result);
    if (!place.ok()) return place.status();
    out_ = *place;
    laid_out_ = true;
    if (IsDirect()) {
      copied_ = outgoing_[self()].bytes;
      HS_RETURN_IF_ERROR(GoOnDirectly());
      return int64_t{0};
    }
    return turns * data_.rounds;
  }

  bool IsDirect() {
    if (!HasReachableMemory(exchange())) return false;
    int64_t largest = 0;
    bool all_shared = true;
    bool all_readable = true;
    for (const PlacedAnnouncement& announcement : received_) {
      largest = std::max(largest, announcement.largest);
      all_shared &= announcement.is_shared != 0;
      all_readable &= announcement.is_readable != 0 && announcement.reads_private != 0;
    }
    return largest >= LeastDirectBytes(exchange()) && (all_shared || all_readable);
  }

  Status GoOnDirectly() {
    MovementArgs movement;
    for (uint32_t peer : peers()) {
      if (outgoing_[peer].bytes > 0) movement.readers.push_back(peer);
      const ByteRange& part = incoming_[peer];
      if (part.bytes == 0) continue;
      Result<Move> move =
          MoveFrom(exchange(), peer, received_[peer].place, 0, out_ + part.first, part.bytes);
      if (!move.ok()) return move.status();
      movement.moves.push_back(*move);
    }
    if (const ByteRange& part = outgoing_[self()]; part.bytes > 0) {
      movement.own.push_back({args_.in + part.first, out_ + incoming_[self()].first, part.bytes});
    }
    GoOnAs(MakeDirectMovement(exchange(), std::move(movement)));
    return Status::Ok();
  }

  const AlltoallArgs args_;
  const Shares announcements_;
  const Shares data_;
  PlacedAnnouncement said_ = {};  // of the member's own parts together
  Status status_;
  std::vector<ByteRange> outgoing_;           // by member: bytes of `in`
  std::vector<ByteRange> incoming_;           // by member: bytes of the result
  std::vector<PlacedAnnouncement> received_;  // from each member
  std::vector<Exchange::Extent> extents_;
  bool laid_out_ = false;
  std::byte* out_ = nullptr;  // the result's memory, once laid out
  int64_t copied_ = 0;        // of the member's own part
};

}  // namespace

std::unique_ptr<Collective> MakeAlltoall(Exchange& exchange, AlltoallArgs args) {
  return std::make_unique<Alltoall>(exchange, std::move(args));
}

}  // namespace horoscale
