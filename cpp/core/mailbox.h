// Mailbox: which receive takes which message, of one member of one process set. Pure.
//
// A message has a peer (who sent it), a channel and a tag; a receive names them, or leaves the peer
// open. Messages of one peer, channel and tag are taken in the order in which they were sent, by
// receives in the order in which they were posted; a receive of any peer takes what came first.
//
// What nobody has asked for yet is bounded: eager messages in bytes, by credit that the receiver
// gives back when they are taken, and offers in number. A sender keeps to both bounds, which are
// checked here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/message_frames.h"

namespace horoscale {

inline constexpr int kAnyPeer = -1;

// Of each sender at one receiver: a message counts with its bytes and what it takes beside.
inline constexpr uint64_t kEagerCreditBytes = 64 << 10;
inline constexpr uint64_t kEagerOverheadBytes = 64;

// What a sender may send a receiver before it is asked for. Between hosts an offer costs a round
// trip more than in a host, where its receiver reads the message itself.
struct EagerLimits {
  uint64_t most_bytes;    // of a message
  uint64_t credit_bytes;  // of all that have not been taken
};
inline constexpr EagerLimits kEagerInHost = {kMaxEagerBytes, kEagerCreditBytes};
inline constexpr EagerLimits kEagerBetweenHosts = {
    kMaxEagerBytesBetweenHosts, 4 * (kMaxEagerBytesBetweenHosts + kEagerOverheadBytes)};

// The receiver gives back that much at once.
inline constexpr uint64_t kLeastCreditGiven = kEagerCreditBytes / 4;
// Of each sender at one receiver, not answered yet.
inline constexpr uint32_t kMaxOffers = 16 << 10;

// A message that has come: in full, or as an offer.
struct ArrivedMessage {
  int peer = 0;
  uint64_t number = 0;
  Envelope envelope;
  bool is_eager = false;
  std::vector<std::byte> payload;  // of an eager one that waits for its receive
  MessageSource source;            // of an offer
};

class Mailbox {
 public:
  // Of a receive, given by the caller.
  using Id = uint64_t;

  // A receive is posted: the message that it takes at once, if there is one.
  std::optional<ArrivedMessage> Post(Id id, int peer, uint8_t channel, int64_t tag);

  // Takes the message that a receive would take; only whole ones. For a set that has failed.
  std::optional<ArrivedMessage> TakeEager(int peer, uint8_t channel, int64_t tag);

  // A message has come: the receive that takes it. If there is none it has to be kept: Keep().
  // kProtocol: it is out of order, or beyond what its sender may send.
  Result<std::optional<Id>> Arrive(int peer, uint64_t number, const Envelope& envelope,
                                   bool is_eager, const EagerLimits& limits);
  void Keep(ArrivedMessage message);

  // What the peer may send again because its eager messages were taken; 0 while it is too little
  // to say so. Returned once.
  uint64_t TakeCreditFor(int peer);

  // Nobody waits in these any more.
  void ForgetReceives() { receives_.clear(); }
  // The peer has left. Forgets what it only offered, with all that follows in the same order, and
  // the receives of it or of any, which are returned.
  std::vector<Id> ForgetPeer(int peer);

  // Whether a receive of any would take a message at once.
  bool HasKeptOfAny(uint8_t channel, int64_t tag);
  size_t num_kept() const { return kept_messages_; }

 private:
  using Key = std::tuple<uint8_t, int64_t, int>;  // channel, tag, peer
  struct Receive {
    Id id;
    uint64_t order;
  };
  struct Kept {
    ArrivedMessage message;
    uint64_t order;
  };
  struct Peer {
    uint64_t last_number = 0;
    uint64_t eager_bytes = 0;  // that have come and were not given back
    uint64_t owed = 0;         // of them, those that were taken
    uint32_t offers = 0;       // that wait for a receive
  };

  using KeptQueue = std::map<Key, std::deque<Kept>>::iterator;
  KeptQueue FindKept(int peer, uint8_t channel, int64_t tag);
  ArrivedMessage Take(KeptQueue queue);
  void OnTaken(int peer, const Envelope& envelope, bool is_eager);

  std::map<Key, std::deque<Receive>> receives_;  // peer may be kAnyPeer
  std::map<Key, std::deque<Kept>> kept_;
  std::map<int, Peer> peers_;
  uint64_t next_order_ = 0;
  size_t kept_messages_ = 0;
};

// The sender's side, for one receiver.
class EagerCredit {
 public:
  explicit EagerCredit(const EagerLimits& limits) : limits_(limits), left_(limits.credit_bytes) {}

  // Whether a message may be sent at once; it has its credit then.
  bool Take(uint64_t bytes);
  // kProtocol: more than was taken.
  Status Give(uint64_t bytes);

 private:
  EagerLimits limits_;
  uint64_t left_;
};

}  // namespace horoscale
