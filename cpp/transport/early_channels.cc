#include "transport/early_channels.h"

#include <string>

namespace horoscale {
namespace {

// Members use a set at different times; this many sets that one of them has never used indicate a
// faulty peer.
constexpr size_t kMaxOfPeer = 4096;

}  // namespace

Status EarlyChannels::Add(int rank) {
  if (++of_rank_[rank] <= kMaxOfPeer) return {};
  return Status::Protocol("rank " + std::to_string(rank) + " has opened more than " +
                          std::to_string(kMaxOfPeer) +
                          " process sets that are not open on this rank");
}

}  // namespace horoscale
