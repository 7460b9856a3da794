// Alltoall: members first tell each other what they will send, then publish chunks that hold a
// piece for every peer (shares.h).
#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/round_loop.h"
#include "collectives/shares.h"
#include "collectives/unequal.h"

namespace horoscale {
namespace {

class Alltoall : public RoundLoop {
 public:
  Alltoall(Exchange& exchange, AlltoallArgs args)
      : RoundLoop(exchange, Participants(exchange, {}), Shares::OfAnnouncements(exchange).rounds),
        args_(std::move(args)),
        announcements_(Shares::OfAnnouncements(exchange)),
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
      if (member != self()) turns_ = std::max(turns_, DivideUp(end - first, data_.bytes));
    }
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
      const Announcement announcement{args_.splits[peer], turns_};
      std::memcpy(bank + offset, &announcement, sizeof(announcement));
      extents_[peer] = {static_cast<size_t>(offset), sizeof(announcement)};
    }
    const SealedChunks sealed = Sealed();
    PublishExtents(round, announcements_.peers * announcements_.bytes, extents_);
    return true;
  }

  Progress Receive(int64_t round) override {
    if (round < announcements_.rounds) return ReceiveAnnouncements(round);
    return ReceiveFromEach(
        round, [&](uint32_t peer) { return Incoming(round, peer).part.bytes > 0; },
        [&](uint32_t peer, const std::byte* chunk) {
          const auto [offset, part] = Incoming(round, peer);
          std::memcpy(args_.result->data.get() + part.first, chunk + offset,
                      static_cast<size_t>(part.bytes));
        });
  }

  Progress ReceiveAnnouncements(int64_t round) {
    const auto offset = [&](uint32_t peer) {
      return announcements_.Offset(round, Distance(size(), peer, self()));
    };
    return ReceiveFromEach(
        round, [&](uint32_t peer) { return offset(peer) >= 0; },
        [&](uint32_t peer, const std::byte* chunk) {
          std::memcpy(&received_[peer], chunk + offset(peer), sizeof(Announcement));
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
    received_[self()] = {args_.splits[self()], turns_};
    int64_t end = 0;
    int64_t turns = 0;
    std::vector<int64_t> rows;
    for (uint32_t member = 0; member < size(); ++member) {
      const Announcement& announcement = received_[member];
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
      rows.push_back(announcement.rows);
    }
    Result<OwnedBytes> data = AllocateResult("alltoall", end);
    if (!data.ok()) return data.status();
    *args_.result = {data.TakeValue(), std::move(rows)};
    laid_out_ = true;
    return turns * data_.rounds;
  }

  const AlltoallArgs args_;
  const Shares announcements_;
  const Shares data_;
  int64_t turns_ = 0;  // that the own parts take
  Status status_;
  std::vector<ByteRange> outgoing_;     // by member: bytes of `in`
  std::vector<ByteRange> incoming_;     // by member: bytes of the result
  std::vector<Announcement> received_;  // from each member
  std::vector<Exchange::Extent> extents_;
  bool laid_out_ = false;
  int64_t copied_ = 0;  // of the own part
};

}  // namespace

std::unique_ptr<Collective> MakeAlltoall(Exchange& exchange, AlltoallArgs args) {
  return std::make_unique<Alltoall>(exchange, std::move(args));
}

}  // namespace horoscale
