// Probes: asks ranks whether their engines run, and tracks the missing answers. Called by the
// engine's owner.
#pragma once

#include <set>
#include <span>
#include <vector>

#include "core/departures.h"
#include "runtime/set_place.h"
#include "transport/transport.h"

namespace horoscale {

class Probes {
 public:
  explicit Probes(Transport& transport) : transport_(transport) {}

  // Asks the members of a set that are not lost.
  void Ask(const SetPlace& set, const Departures& departures);
  // Handles a probe, which is answered, or an answer.
  void OnFrame(int from_rank, ChannelId channel, std::span<const std::byte> payload);
  // The members that were asked and have not answered.
  std::vector<int> Silent(const SetPlace& set) const;

 private:
  Transport& transport_;
  std::set<int> silent_;
};

}  // namespace horoscale
