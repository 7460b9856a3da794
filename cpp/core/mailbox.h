// Mailbox: matches messages and receives of one member of one process set. Pure.
//
// A message has a peer (its sender), a channel and a tag; a receive specifies them, or accepts any
// peer. Messages with the same peer, channel and tag match in the order in which they were sent,
// with receives in the order in which they were posted. A receive from any peer matches the message
// that arrived first.
//
// Unexpected messages are bounded: eager messages in bytes, by credit that the receiver returns
// when they are matched, and offers in number. Senders must respect both limits, which are checked
// here.
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

// Per sender and receiver; messages count with their bytes and a fixed overhead.
inline constexpr uint64_t kEagerCreditBytes = 64 << 10;
inline constexpr uint64_t kEagerOverheadBytes = 64;

// What a sender may send eagerly. Between hosts, an offer costs one more round trip than within a
// host, where the receiver reads the message itself.
struct EagerLimits {
  uint64_t most_bytes;    // of a message
  uint64_t credit_bytes;  // of all unmatched messages
};
inline constexpr EagerLimits kEagerInHost = {kMaxEagerBytes, kEagerCreditBytes};
inline constexpr EagerLimits kEagerBetweenHosts = {
    kMaxEagerBytesBetweenHosts, 4 * (kMaxEagerBytesBetweenHosts + kEagerOverheadBytes)};

// The minimum credit that a receiver returns at once.
inline constexpr uint64_t kLeastCreditGiven = kEagerCreditBytes / 4;
// Unanswered offers per sender and receiver.
inline constexpr uint32_t kMaxOffers = 16 << 10;

// A message that has arrived, completely or as an offer.
struct ArrivedMessage {
  int peer = 0;
  uint64_t number = 0;
  Envelope envelope;
  bool is_eager = false;
  std::vector<std::byte> payload;  // of an eager message that waits for its receive
  MessageSource source;            // of an offer
};

class Mailbox {
 public:
  // Identifies a receive; chosen by the caller.
  using Id = uint64_t;

  // Posts a receive; returns the message that it matches immediately, if any.
  std::optional<ArrivedMessage> Post(Id id, int peer, uint8_t channel, int64_t tag);

  // Removes the complete message that a receive would match. For a set that has failed.
  std::optional<ArrivedMessage> TakeEager(int peer, uint8_t channel, int64_t tag);

  // A message has arrived: returns the receive that it matches. If there is none, call Keep().
  // kProtocol: it is out of order, or exceeds its sender's limits.
  Result<std::optional<Id>> Arrive(int peer, uint64_t number, const Envelope& envelope,
                                   bool is_eager, const EagerLimits& limits);
  void Keep(ArrivedMessage message);

  // The credit to return to the peer because its eager messages were matched; 0 while it is too
  // small to send. Returned once.
  uint64_t TakeCreditFor(int peer);

  // Removes all receives.
  void ForgetReceives() { receives_.clear(); }
  // The peer has left. Removes its offers and the messages that follow them in the same order.
  // Removes and returns the receives from it or from any peer.
  std::vector<Id> ForgetPeer(int peer);

  // Whether a receive from any peer would match a message immediately.
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
    uint64_t eager_bytes = 0;  // received and not returned as credit
    uint64_t owed = 0;         // of these, bytes of matched messages
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

  // Takes the credit for an eager message; returns false if there is not enough.
  bool Take(uint64_t bytes);
  // kProtocol: more than was taken.
  Status Give(uint64_t bytes);

 private:
  EagerLimits limits_;
  uint64_t left_;
};

}  // namespace horoscale
