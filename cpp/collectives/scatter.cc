// Scatter: the root first sends each member the size of its part, then publishes chunks that
// contain a piece for every peer (shares.h). A part goes directly to its member, even on another
// host: forwarding would save nothing.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "collectives/round_loop.h"
#include "collectives/shares.h"
#include "collectives/unequal.h"

namespace horoscale {
namespace {

class Scatter : public RoundLoop {
 public:
  Scatter(Exchange& exchange, ScatterArgs args)
      : RoundLoop(exchange, Participants(exchange, {}), Shares::OfAnnouncements(exchange).rounds),
        args_(std::move(args)),
        announcements_(Shares::OfAnnouncements(exchange)),
        data_(Shares::OfData(exchange)),
        outgoing_(IsRoot() ? size() : 0),
        extents_(size()) {
    if (IsRoot()) status_ = DealOut();
  }

 private:
  bool IsRoot() const { return self() == args_.root; }

  Status DealOut() {
    if (args_.splits.size() != size()) {
      return Status::InvalidArgument("scatter: splits has " + std::to_string(args_.splits.size()) +
                                     " entries");
    }
    int64_t end = 0;
    int64_t turns = 0;
    for (uint32_t member = 0; member < size(); ++member) {
      const int64_t first = end;
      if (!AddRowBytes(args_.splits[member], args_.row_bytes, &end)) {
        return Status::InvalidArgument("scatter: " + std::to_string(args_.splits[member]) +
                                       " rows for member " + std::to_string(member) + " can't be");
      }
      outgoing_[member] = {first, end - first};
      if (member != self()) turns = std::max(turns, DivideUp(end - first, data_.bytes));
    }
    own_ = {args_.splits[self()], turns};
    return Status::Ok();
  }

  Shares::Piece Outgoing(int64_t round, uint32_t peer) const {
    return data_.PieceOf(outgoing_[peer], round - announcements_.rounds,
                         Distance(size(), self(), peer));
  }
  Shares::Piece Incoming(int64_t round) const {
    return data_.PieceOf({0, own_bytes_}, round - announcements_.rounds,
                         Distance(size(), args_.root, self()));
  }

  bool Send(int64_t round) override {
    if (!IsRoot()) return true;
    if (round < announcements_.rounds) return Announce(round);
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
      const Announcement announcement{status_.ok() ? args_.splits[peer] : 0, own_.turns};
      std::memcpy(bank + offset, &announcement, sizeof(announcement));
      extents_[peer] = {static_cast<size_t>(offset), sizeof(announcement)};
    }
    const SealedChunks sealed = Sealed();
    PublishExtents(round, announcements_.peers * announcements_.bytes, extents_);
    return true;
  }

  Progress Receive(int64_t round) override {
    if (IsRoot()) return Progress::kDone;
    if (round < announcements_.rounds) return ReceiveAnnouncement(round);
    return ReceiveFromEach(
        round, [&](uint32_t peer) { return peer == args_.root && Incoming(round).part.bytes > 0; },
        [&](uint32_t, const std::byte* chunk) {
          const auto [offset, part] = Incoming(round);
          std::memcpy(args_.result->data.get() + part.first, chunk + offset,
                      static_cast<size_t>(part.bytes));
        });
  }

  Progress ReceiveAnnouncement(int64_t round) {
    const int64_t offset = announcements_.Offset(round, Distance(size(), args_.root, self()));
    return ReceiveFromEach(
        round, [&](uint32_t peer) { return peer == args_.root && offset >= 0; },
        [&](uint32_t, const std::byte* chunk) {
          std::memcpy(&own_, chunk + offset, sizeof(Announcement));
        });
  }

  // Copies the root's own part.
  bool LocalWork() override {
    if (!laid_out_ || !IsRoot() || copied_ == own_bytes_) return false;
    const int64_t bytes = std::min(chunk_bytes(), own_bytes_ - copied_);
    std::memcpy(args_.result->data.get() + copied_, args_.in + outgoing_[self()].first + copied_,
                static_cast<size_t>(bytes));
    copied_ += bytes;
    return true;
  }

  Result<int64_t> MoreRounds() override {
    if (laid_out_) return int64_t{0};
    HS_RETURN_IF_ERROR(status_);
    if (!AddRowBytes(own_.rows, args_.row_bytes, &own_bytes_) ||
        !data_.Plausible(own_.turns, IsRoot() ? 0 : own_bytes_)) {
      return Status::Protocol("scatter: member " + std::to_string(args_.root) + " announced " +
                              std::to_string(own_.rows) + " rows of " +
                              std::to_string(args_.row_bytes) + " bytes in " +
                              std::to_string(own_.turns) + " turns, which can't be");
    }
    *args_.result = {nullptr, std::vector<int64_t>(size())};
    args_.result->rows[args_.root] = own_.rows;
    Result<std::byte*> place = PlaceResult("scatter", args_.row_bytes, {}, args_.result);
    if (!place.ok()) return place.status();
    laid_out_ = true;
    return own_.turns * data_.rounds;
  }

  const ScatterArgs args_;
  const Shares announcements_;
  const Shares data_;
  Status status_;
  std::vector<ByteRange> outgoing_;  // by member: bytes of `in`; at the root
  Announcement own_{};
  int64_t own_bytes_ = 0;  // of the result
  std::vector<Exchange::Extent> extents_;
  bool laid_out_ = false;
  int64_t copied_ = 0;  // of the root's own part
};

}  // namespace

std::unique_ptr<Collective> MakeScatter(Exchange& exchange, ScatterArgs args) {
  return std::make_unique<Scatter>(exchange, std::move(args));
}

}  // namespace horoscale
