// LaunchStamps: lets the members of a set agree on the position of each of its operations on CUDA
// tensors in the launch order of all sets (core/launch_order.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/launch_order.h"
#include "core/member.h"
#include "runtime/set_place.h"
#include "transport/transport.h"

namespace horoscale {

class LaunchStamps {
 public:
  LaunchStamps(LaunchOrder& order, Transport& transport, const SetPlace& place);

  // An entry has been planned.
  void Propose(const Action& action);
  // Handles a member's proposal or the coordinator's decision.
  Status OnFrame(int from_rank, std::span<const std::byte> payload);
  // The set has failed or ended.
  void End() { order_.RemoveSet(place_.channel.incarnation); }

  // Whether all later launches have a position in the order, after entries up to `ended` have been
  // executed.
  bool OrdersAll(uint64_t ended) const { return stamped_from_ && ended >= *stamped_from_; }

  // The order in which an entry is launched; null if there are no other launches.
  LaunchOrder* OrderOf(const Action& action) {
    return order_.Has(place_.channel.incarnation, action.sequence) ? &order_ : nullptr;
  }

 private:
  Status Collect(uint32_t member, LaunchStamp proposal);

  LaunchOrder& order_;
  Transport& transport_;
  const SetPlace& place_;
  std::optional<StampCollector> collector_;  // on the coordinator
  // The first stamped entry, by which other sets have been registered.
  std::optional<uint64_t> stamped_from_;
};

}  // namespace horoscale
