// Alltoall: members first tell each other what they will send, then publish chunks that hold a
// piece for every peer.
//
// Each peer has an equal share of every chunk, so that one large pair doesn't hold up the others.
// Where a chunk hasn't room for all peers, a turn of all takes several rounds: each serves the
// peers at some distances from the sender.
//
// Members that can reach each other's memory say, with their numbers of rows, where these are, and
// take large ones from there: see direct_movement.h.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "collectives/direct_movement.h"
#include "collectives/round_loop.h"
#include "collectives/unequal.h"

namespace horoscale {
namespace {

// What a member tells each peer first.
struct Announcement {
  int64_t rows;   // for this peer
  int64_t turns;  // that the sender needs for its largest part: the same to all peers
  // What follows is said only where members may reach each other's memory.
  Place place;            // of the rows for this peer
  int64_t largest;        // bytes of the sender's largest part
  int16_t is_shared;      // whether all of its parts are in shared memory
  int16_t is_readable;    // or can be read where they are
  int32_t reads_private;  // whether it can read what is not
};

size_t AnnouncementBytes(const Exchange& exchange) {
  return HasReachableMemory(exchange) ? sizeof(Announcement) : offsetof(Announcement, place);
}

// How peers share the chunks of a turn: the same for all members.
struct Shares {
  int64_t rounds = 1;  // of a turn
  int64_t peers = 0;   // that a round serves, at most
  int64_t bytes = 0;   // for each of them: a multiple of `unit`

  Shares(int64_t chunk_bytes, int64_t all_peers, int64_t unit) {
    const int64_t units = chunk_bytes / unit;
    rounds = DivideUp(all_peers, units);
    peers = DivideUp(all_peers, rounds);
    bytes = units / peers * unit;
  }
  // Where the share of a peer is in the chunk of a round of the turn; -1: in that of another round.
  int64_t Offset(int64_t round, int64_t distance) const {
    const int64_t position = distance - round * peers;
    return position >= 0 && position < peers ? position * bytes : -1;
  }
};

// What goes to, or comes from, one member.
struct Part {
  int64_t first = 0;
  int64_t bytes = 0;
};

class Alltoall : public RoundLoop {
 public:
  Alltoall(Exchange& exchange, AlltoallArgs args)
      : RoundLoop(exchange, Participants(exchange, {}), AnnouncementsOf(exchange).rounds),
        args_(std::move(args)),
        announcements_(AnnouncementsOf(exchange)),
        data_(chunk_bytes(), PeersOf(exchange), kLineBytes),
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
    said_.turns = DivideUp(said_.largest, data_.bytes);
    if (!status_.ok() || !HasReachableMemory(exchange)) return;
    said_.place = PlacesOf(exchange, {{args_.in, end}}).front();
    said_.is_shared = said_.place.is_shared() ? 1 : 0;
    said_.is_readable = said_.place.is_readable() ? 1 : 0;
    said_.reads_private = exchange.shared_memory()->ReadsPrivate() ? 1 : 0;
  }

 private:
  static int64_t PeersOf(const Exchange& exchange) {
    return std::max<int64_t>(int64_t{exchange.size()} - 1, 1);
  }
  static Shares AnnouncementsOf(const Exchange& exchange) {
    Shares shares(static_cast<int64_t>(exchange.chunk_bytes()), PeersOf(exchange),
                  static_cast<int64_t>(AnnouncementBytes(exchange)));
    if (exchange.size() == 1) shares.rounds = 0;
    return shares;
  }

  // 0 for the next member.
  int64_t Distance(uint32_t sender, uint32_t peer) const {
    return (peer + size() - sender - 1) % size();
  }
  // Where a data round has the piece of a part for a peer at this distance, and which bytes.
  struct Piece {
    int64_t offset = 0;
    Part part;
  };
  Piece PieceOf(const Part& whole, int64_t round, int64_t distance) const {
    const int64_t index = round - announcements_.rounds;
    const int64_t offset = data_.Offset(index % data_.rounds, distance);
    if (offset < 0) return {};
    const int64_t skip = std::min(index / data_.rounds * data_.bytes, whole.bytes);
    return {offset, {whole.first + skip, std::min(data_.bytes, whole.bytes - skip)}};
  }
  Piece Outgoing(int64_t round, uint32_t peer) const {
    return PieceOf(outgoing_[peer], round, Distance(self(), peer));
  }
  Piece Incoming(int64_t round, uint32_t peer) const {
    return PieceOf(incoming_[peer], round, Distance(peer, self()));
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
      const int64_t offset = announcements_.Offset(round, Distance(self(), peer));
      extents_[peer] = {};
      if (offset < 0) continue;
      const Announcement announcement = AnnouncementTo(peer);
      std::memcpy(bank + offset, &announcement, AnnouncementBytes(exchange()));
      extents_[peer] = {static_cast<size_t>(offset), AnnouncementBytes(exchange())};
    }
    const SealedChunks sealed = Sealed();
    PublishExtents(round, announcements_.peers * announcements_.bytes, extents_);
    return true;
  }

  Announcement AnnouncementTo(uint32_t member) const {
    Announcement announcement = said_;
    announcement.rows = args_.splits[member];
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
      return announcements_.Offset(round, Distance(peer, self()));
    };
    return ReceiveFromEach(
        round, [&](uint32_t peer) { return offset(peer) >= 0; },
        [&](uint32_t peer, const std::byte* chunk) {
          std::memcpy(&received_[peer], chunk + offset(peer), AnnouncementBytes(exchange()));
        });
  }

  // The own part of the result.
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
      const Announcement& announcement = received_[member];
      const int64_t first = end;
      if (!AddRowBytes(announcement.rows, args_.row_bytes, &end) ||
          !Plausible(announcement.turns, member == self() ? 0 : end - first)) {
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
    for (const Announcement& announcement : received_) {
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
      const Part& part = incoming_[peer];
      if (part.bytes == 0) continue;
      Result<Move> move =
          MoveFrom(exchange(), peer, received_[peer].place, 0, out_ + part.first, part.bytes);
      if (!move.ok()) return move.status();
      movement.moves.push_back(*move);
    }
    if (const Part& part = outgoing_[self()]; part.bytes > 0) {
      movement.own.push_back({args_.in + part.first, out_ + incoming_[self()].first, part.bytes});
    }
    GoOnAs(MakeDirectMovement(exchange(), std::move(movement)));
    return Status::Ok();
  }

  // Whether so many turns are enough for the bytes, and not more than any size could need.
  bool Plausible(int64_t turns, int64_t bytes) const {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    return turns >= DivideUp(bytes, data_.bytes) &&
           turns <= DivideUp(kMost / data_.rounds, data_.bytes);
  }

  const AlltoallArgs args_;
  const Shares announcements_;
  const Shares data_;
  Announcement said_ = {};  // of the own parts together
  Status status_;
  std::vector<Part> outgoing_;          // by member: bytes of `in`
  std::vector<Part> incoming_;          // by member: bytes of the result
  std::vector<Announcement> received_;  // from each member
  std::vector<Exchange::Extent> extents_;
  bool laid_out_ = false;
  std::byte* out_ = nullptr;  // where the result goes, then
  int64_t copied_ = 0;        // of the own part
};

}  // namespace

std::unique_ptr<Collective> MakeAlltoall(Exchange& exchange, AlltoallArgs args) {
  return std::make_unique<Alltoall>(exchange, std::move(args));
}

}  // namespace horoscale
