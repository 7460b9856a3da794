#include "runtime/probes.h"

namespace horoscale {
namespace {

constexpr std::byte kAsk{0};
constexpr std::byte kAnswer{1};

}  // namespace

void Probes::Ask(const SetPlace& set, const Departures& departures) {
  for (const int rank : set.ranks) {
    if (rank == set.rank || departures.lost().contains(rank)) continue;
    silent_.insert(rank);
    transport_.Send(rank, {FrameKind::kProbe, set.channel}, {&kAsk, 1});
  }
}

void Probes::OnFrame(int from_rank, ChannelId channel, std::span<const std::byte> payload) {
  if (payload.size() != 1) return;
  if (payload[0] == kAnswer) {
    silent_.erase(from_rank);
  } else {
    transport_.Send(from_rank, {FrameKind::kProbe, channel}, {&kAnswer, 1});
  }
}

std::vector<int> Probes::Silent(const SetPlace& set) const {
  std::vector<int> silent;
  for (const int rank : set.ranks) {
    if (silent_.contains(rank)) silent.push_back(rank);
  }
  return silent;
}

}  // namespace horoscale
