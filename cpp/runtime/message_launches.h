// MessageLaunches: the messages of a set that NCCL carries, from their match until the device has
// them.
//
// To the launch order (core/launch_order.h) a message is an operation of two members, sender and
// receiver: each proposes a stamp when the receive has found its message, the sender decides, and
// both launch it on the set's communicator when it is its turn among all that this rank launches.
// Where a collective may have no place in that order, messages are not carried so.
//
// Messages whose turns follow each other go in one group of NCCL's calls, which is one launch.
// Ranks may group differently: a kernel moves all messages of such a group at the same time, so
// that none of them waits for one that comes later in the order. Connections it makes one after the
// other, so that the first message of two ranks in one direction has no others in its group.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "backends/nccl/device_lane.h"
#include "core/launch_order.h"
#include "runtime/operation.h"
#include "runtime/set_place.h"

namespace horoscale {

class MessageLaunches {
 public:
  // A message by its place among the launches of all ranks: no plan entry of the set has it.
  struct Id {
    int sender = 0;
    int receiver = 0;
    uint64_t number = 0;
  };
  // The set's lane, if messages can be launched there and have a place in the order; else null.
  using LaneInOrder = std::function<const DeviceLane*()>;
  // The device has the message of this operation, whose event is set.
  using Launched = std::function<void(const OperationPtr& operation)>;

  MessageLaunches(LaunchOrder& order, const SetPlace& place, LaneInOrder lane_in_order,
                  Launched launched)
      : order_(order),
        place_(place),
        lane_in_order_(std::move(lane_in_order)),
        launched_(std::move(launched)) {}

  // Whether the operation's tensor can go to another member, or come from it, by NCCL.
  bool CanCarry(const Operation& operation, int peer) const;

  // As LaunchOrder.
  uint64_t Propose(const Id& id) { return order_.Propose(Incarnation(), SequenceOf(id)); }
  // What is agreed on is launched in its turn.
  Status Agree(const Id& id, uint64_t stamp, const OperationPtr& operation);

  // Launches what has its turn; whether anything moved. A failed status: NCCL's.
  Result<bool> Step();
  bool empty() const { return agreed_.empty() && issued_.empty(); }
  // Whether NCCL has been given some that aren't launched.
  bool IsIssued() const { return !issued_.empty(); }
  // An asynchronous error of NCCL's, while the set's lane is used.
  Status Check() const { return lane_->Poll(); }

  // The set has failed: nothing more is launched. The operations that NCCL may have begun with:
  // they have their event, unless the device refused one.
  std::vector<OperationPtr> Abandon();

 private:
  struct Agreed {
    uint64_t sequence;
    OperationPtr operation;
    uint32_t peer;
  };

  uint32_t Incarnation() const { return place_.channel.incarnation; }
  uint64_t SequenceOf(const Id& id) const;
  std::vector<Agreed> TakeNext();
  Status Issue() const;

  LaunchOrder& order_;
  const SetPlace& place_;
  const LaneInOrder lane_in_order_;
  const Launched launched_;
  const DeviceLane* lane_ = nullptr;   // from the first message on
  std::map<uint64_t, Agreed> agreed_;  // by sequence
  std::vector<Agreed> issued_;         // of them, one group
  // Peers to which a message was launched (true), or from which (false).
  std::set<std::pair<uint32_t, bool>> connected_;
};

}  // namespace horoscale
