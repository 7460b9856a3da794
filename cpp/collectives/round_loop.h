// The loop that all collectives share: rounds that are sent in order and received in order, a round
// after it is sent, sending ahead of receiving as far as the exchange has banks.
//
// A subclass says what a round is. It waits only for what some member sends or releases in an
// earlier place of the common order, so the member that is furthest behind can always go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "collectives/collective.h"

namespace horoscale {

class RoundLoop : public Collective {
 public:
  Result<Progress> Step() final;

 protected:
  // `participants`: indices of the members that take part, sorted, self among them.
  RoundLoop(Exchange& exchange, std::vector<uint32_t> participants, int64_t rounds);

  // Publishes this member's chunk of the round, if it has one; false if that has to wait.
  virtual bool Send(int64_t round) = 0;
  // Reads the peers' chunks of the round; kDone when nothing more will be read of it.
  virtual Progress Receive(int64_t round) = 0;
  // Does a piece of what needs no peer; false if there is none (left).
  virtual bool LocalWork() { return false; }
  // Called when all rounds are over: how many more there are, now that their number is known.
  virtual Result<int64_t> MoreRounds() { return int64_t{0}; }

  // For MoreRounds(): all that is left is another collective's, of which this one's rounds are
  // over.
  void GoOnAs(std::unique_ptr<Collective> rest) { rest_ = std::move(rest); }
  Exchange& exchange() { return exchange_; }

  // For Receive(): calls read(peer, chunk) for one peer at a time, when its chunk is there.
  // wants(peer) tells whether the round has one for this member.
  template <typename Wants, typename Read>
  Progress ReceiveFromEach(int64_t round, Wants wants, Read read) {
    for (; next_peer_ < peers_.size(); ++next_peer_) {
      const uint32_t peer = peers_[next_peer_];
      if (!wants(peer)) continue;
      const std::byte* chunk = Peek(round, peer);
      if (chunk == nullptr) return Progress::kIdle;
      read(peer, chunk);
      ++next_peer_;
      return next_peer_ < peers_.size() ? Progress::kAdvanced : Progress::kDone;
    }
    return Progress::kDone;
  }

  std::byte* Reserve(int64_t round) { return exchange_.Reserve(Number(round)); }
  // Every peer reads the first `bytes`, or what the extents say.
  void PublishToPeers(int64_t round, int64_t bytes);
  void PublishExtents(int64_t round, int64_t bytes, std::span<const Exchange::Extent> extents);
  // From where it is; false if it has to be in the reserved space. No result goes there until it
  // HasLeft().
  bool PublishInPlace(int64_t round, const std::byte* chunk, int64_t bytes,
                      std::span<const Exchange::Extent> extents) {
    return exchange_.PublishInPlace(Number(round), chunk, static_cast<size_t>(bytes), extents);
  }
  bool HasLeft(int64_t round) const { return exchange_.HasLeft(Number(round)); }
  // While it lives, nobody changes between hosts what is published: for numbers that members act
  // on.
  SealedChunks Sealed() { return SealedChunks(exchange_); }
  const std::byte* Peek(int64_t round, uint32_t peer) {
    return exchange_.Peek(Number(round), peer);
  }

  uint32_t self() const { return exchange_.self(); }
  uint32_t size() const { return exchange_.size(); }
  int64_t chunk_bytes() const { return static_cast<int64_t>(exchange_.chunk_bytes()); }
  const std::vector<uint32_t>& participants() const { return participants_; }
  // The others, beginning with the next higher one, so that not all read the same chunk at once.
  const std::vector<uint32_t>& peers() const { return peers_; }

 private:
  uint64_t Number(int64_t round) const { return first_round_ + static_cast<uint64_t>(round); }
  void AddRounds(int64_t rounds);

  Exchange& exchange_;
  const std::vector<uint32_t> participants_;
  std::vector<uint32_t> peers_;
  const uint64_t first_round_;
  int64_t rounds_ = 0;
  int64_t sent_ = 0;
  int64_t received_ = 0;
  std::unique_ptr<Collective> rest_;
  size_t next_peer_ = 0;                          // of the round that is being received
  std::vector<Exchange::Extent> same_for_peers_;  // empty unless some members are absent
};

// A member that has joined: it takes no part in the rounds of the others, but counts them.
class Bystander : public Collective {
 public:
  Bystander(Exchange& exchange, int64_t rounds);
  Result<Progress> Step() override;

 private:
  Exchange& exchange_;
  int64_t rounds_;
};

// All member indices but the absent ones, sorted.
std::vector<uint32_t> Participants(const Exchange& exchange, std::span<const uint32_t> absent);

constexpr int64_t DivideUp(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Pieces of chunks begin at cache lines, which also keeps elements in one piece.
inline constexpr int64_t kLineBytes = 64;

struct ByteRange {
  int64_t first = 0;
  int64_t bytes = 0;
};
// What owner `index` of `owners` has of `bytes` bytes: whole cache lines, as evenly as that goes.
ByteRange SliceOf(int64_t bytes, uint32_t owners, uint32_t index);

}  // namespace horoscale
