// What alltoall and scatter share: chunks that hold a piece for every peer, and what a member tells
// each peer before the first one.
//
// Each peer has an equal share of every chunk, so that one large part doesn't hold up the others.
// Where a chunk hasn't room for all peers, a turn of all takes several rounds: each serves the
// peers at some distances from the sender.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "collectives/round_loop.h"

namespace horoscale {

struct Announcement {
  int64_t rows;   // for this peer
  int64_t turns;  // that the sender needs for its largest part: the same to all peers
};

// How peers share the chunks of a turn: the same for all members.
struct Shares {
  int64_t rounds = 1;  // of a turn
  int64_t peers = 0;   // that a round serves, at most
  int64_t bytes = 0;   // for each of them: a multiple of `unit`

  Shares(const Exchange& exchange, int64_t unit) {
    const int64_t all_peers = std::max<int64_t>(int64_t{exchange.size()} - 1, 1);
    const int64_t units = static_cast<int64_t>(exchange.chunk_bytes()) / unit;
    rounds = DivideUp(all_peers, units);
    peers = DivideUp(all_peers, rounds);
    bytes = units / peers * unit;
  }
  static Shares OfAnnouncements(const Exchange& exchange,
                                size_t announcement_bytes = sizeof(Announcement)) {
    Shares shares(exchange, static_cast<int64_t>(announcement_bytes));
    if (exchange.size() == 1) shares.rounds = 0;
    return shares;
  }
  static Shares OfData(const Exchange& exchange) { return {exchange, kLineBytes}; }

  // Where the share of a peer is in the chunk of a round of the turn; -1: in that of another round.
  int64_t Offset(int64_t round, int64_t distance) const {
    const int64_t position = distance - round * peers;
    return position >= 0 && position < peers ? position * bytes : -1;
  }

  // Where round `index` has the piece of a part for a peer at this distance, and which bytes.
  struct Piece {
    int64_t offset = 0;
    ByteRange part;
  };
  Piece PieceOf(const ByteRange& whole, int64_t index, int64_t distance) const {
    const int64_t offset = Offset(index % rounds, distance);
    if (offset < 0) return {};
    const int64_t skip = std::min(index / rounds * bytes, whole.bytes);
    return {offset, {whole.first + skip, std::min(bytes, whole.bytes - skip)}};
  }

  // Whether so many turns are enough for a part, and not more than any size could need.
  bool Plausible(int64_t turns, int64_t part_bytes) const {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    return turns >= DivideUp(part_bytes, bytes) && turns <= DivideUp(kMost / rounds, bytes);
  }
};

// How far behind the sender a peer is: 0 for the next member.
constexpr int64_t Distance(uint32_t size, uint32_t sender, uint32_t peer) {
  return (peer + size - sender - 1) % size;
}

}  // namespace horoscale
