// LaunchStamps: how the members of a set agree when each of its operations on CUDA tensors is
// launched, among those of other sets (core/launch_order.h).
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
  // A member's proposal, or the coordinator's decision.
  Status OnFrame(int from_rank, std::span<const std::byte> payload);
  // The set has failed, or is at its end.
  void End() { order_.RemoveSet(place_.channel.incarnation); }

  // Whether all that will be launched has a place in the order, when entries up to this one have
  // been executed.
  bool OrdersAll(uint64_t ended) const { return stamped_from_ && ended >= *stamped_from_; }

  // In whose order an entry is launched; null: in none, as nobody else launches anything.
  LaunchOrder* OrderOf(const Action& action) {
    return order_.Has(place_.channel.incarnation, action.sequence) ? &order_ : nullptr;
  }

 private:
  Status Collect(uint32_t member, LaunchStamp proposal);

  LaunchOrder& order_;
  Transport& transport_;
  const SetPlace& place_;
  std::optional<StampCollector> collector_;  // on the coordinator
  // The entry from which on all are stamped: other sets have been registered by then.
  std::optional<uint64_t> stamped_from_;
};

}  // namespace horoscale
