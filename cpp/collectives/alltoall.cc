// Alltoall: members first tell each other what they will send, then publish chunks that hold a
// piece for every peer.
//
// Each peer has an equal share of every chunk, so that one large pair doesn't hold up the others.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "collectives/round_loop.h"
#include "collectives/unequal.h"

namespace horoscale {
namespace {

// What a member tells each peer in the first round.
struct Announcement {
  int64_t rows;    // for this peer
  int64_t rounds;  // that the sender needs for its largest part: the same to all peers
};

// What goes to, or comes from, one member.
struct Part {
  int64_t first = 0;
  int64_t bytes = 0;
};

class Alltoall : public RoundLoop {
 public:
  Alltoall(Exchange& exchange, AlltoallArgs args)
      : RoundLoop(exchange, Participants(exchange, {}), exchange.size() == 1 ? 0 : 1),
        args_(std::move(args)),
        share_bytes_(chunk_bytes() / kLineBytes / std::max<int64_t>(int64_t{size()} - 1, 1) *
                     kLineBytes),
        outgoing_(size()),
        incoming_(size()),
        announced_(size()),
        received_(size()),
        extents_(size()) {
    int64_t end = 0;
    int64_t rounds = 0;
    for (uint32_t member = 0; member < size(); ++member) {
      const int64_t first = end;
      if (!AddRowBytes(args_.splits[member], args_.row_bytes, &end)) {
        status_ =
            Status::InvalidArgument("alltoall: " + std::to_string(args_.splits[member]) +
                                    " rows for member " + std::to_string(member) + " can't be");
        break;
      }
      outgoing_[member] = {first, end - first};
      if (member != self()) rounds = std::max(rounds, DivideUp(end - first, share_bytes_));
    }
    for (uint32_t member = 0; member < size(); ++member) {
      announced_[member] = {args_.splits[member], rounds};
    }
  }

 private:
  // The piece of a part that a data round carries; round 0 carries the announcements.
  Part PieceOf(const Part& part, int64_t round) const {
    const int64_t skip = std::min((round - 1) * share_bytes_, part.bytes);
    return {part.first + skip, std::min(share_bytes_, part.bytes - skip)};
  }

  // Where in the sender's chunk a peer's share begins.
  int64_t ShareOffset(uint32_t sender, uint32_t peer) const {
    return int64_t{(peer + size() - sender - 1) % size()} * share_bytes_;
  }

  bool Send(int64_t round) override {
    if (round == 0) return Announce();
    const auto has_piece = [&](uint32_t peer) { return PieceOf(outgoing_[peer], round).bytes > 0; };
    if (std::none_of(peers().begin(), peers().end(), has_piece)) return true;
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    for (uint32_t peer : peers()) {
      const Part piece = PieceOf(outgoing_[peer], round);
      const int64_t offset = ShareOffset(self(), peer);
      const auto bytes = static_cast<size_t>(piece.bytes);
      if (bytes > 0) std::memcpy(bank + offset, args_.in + piece.first, bytes);
      extents_[peer] = {static_cast<size_t>(offset), bytes};
    }
    PublishExtents(round, chunk_bytes(), extents_);
    return true;
  }

  bool Announce() {
    std::byte* bank = Reserve(0);
    if (bank == nullptr) return false;
    const size_t bytes = size() * sizeof(Announcement);
    std::memcpy(bank, announced_.data(), bytes);
    for (uint32_t peer : peers()) {
      extents_[peer] = {peer * sizeof(Announcement), sizeof(Announcement)};
    }
    PublishExtents(0, static_cast<int64_t>(bytes), extents_);
    return true;
  }

  Progress Receive(int64_t round) override {
    if (round == 0) {
      return ReceiveFromEach(
          round, [](uint32_t) { return true; },
          [this](uint32_t peer, const std::byte* chunk) {
            std::memcpy(&received_[peer], chunk + self() * sizeof(Announcement),
                        sizeof(Announcement));
          });
    }
    return ReceiveFromEach(
        round, [&](uint32_t peer) { return PieceOf(incoming_[peer], round).bytes > 0; },
        [&](uint32_t peer, const std::byte* chunk) {
          const Part piece = PieceOf(incoming_[peer], round);
          std::memcpy(args_.result->data.get() + piece.first, chunk + ShareOffset(peer, self()),
                      static_cast<size_t>(piece.bytes));
        });
  }

  // The own part of the result.
  bool LocalWork() override {
    if (!laid_out_ || copied_ == outgoing_[self()].bytes) return false;
    const int64_t bytes = std::min(chunk_bytes(), outgoing_[self()].bytes - copied_);
    std::memcpy(args_.result->data.get() + incoming_[self()].first + copied_,
                args_.in + outgoing_[self()].first + copied_, static_cast<size_t>(bytes));
    copied_ += bytes;
    return true;
  }

  Result<int64_t> MoreRounds() override {
    if (laid_out_) return int64_t{0};
    HS_RETURN_IF_ERROR(status_);
    received_[self()] = announced_[self()];
    int64_t end = 0;
    int64_t rounds = 0;
    std::vector<int64_t> rows;
    for (uint32_t member = 0; member < size(); ++member) {
      const Announcement& announcement = received_[member];
      const int64_t first = end;
      if (!AddRowBytes(announcement.rows, args_.row_bytes, &end) ||
          !Plausible(announcement.rounds, member == self() ? 0 : end - first)) {
        return Status::Protocol("alltoall: member " + std::to_string(member) + " announced " +
                                std::to_string(announcement.rows) + " rows of " +
                                std::to_string(args_.row_bytes) + " bytes in " +
                                std::to_string(announcement.rounds) + " rounds, which can't be");
      }
      incoming_[member] = {first, end - first};
      rounds = std::max(rounds, announcement.rounds);
      rows.push_back(announcement.rows);
    }
    Result<OwnedBytes> data = AllocateResult("alltoall", end);
    if (!data.ok()) return data.status();
    *args_.result = {data.TakeValue(), std::move(rows)};
    laid_out_ = true;
    return rounds;
  }

  // Whether so many rounds are enough for the bytes, and not more than any size could need.
  bool Plausible(int64_t rounds, int64_t bytes) const {
    return rounds >= DivideUp(bytes, share_bytes_) &&
           rounds <= DivideUp(std::numeric_limits<int64_t>::max(), share_bytes_);
  }

  const AlltoallArgs args_;
  const int64_t share_bytes_;
  Status status_;
  std::vector<Part> outgoing_;           // by member: bytes of `in`
  std::vector<Part> incoming_;           // by member: bytes of the result
  std::vector<Announcement> announced_;  // to each member
  std::vector<Announcement> received_;   // from each member
  std::vector<Exchange::Extent> extents_;
  bool laid_out_ = false;
  int64_t copied_ = 0;  // of the own part
};

}  // namespace

std::unique_ptr<Collective> MakeAlltoall(Exchange& exchange, AlltoallArgs args) {
  return std::make_unique<Alltoall>(exchange, std::move(args));
}

}  // namespace horoscale
