// MessageLaunches: the messages of a set that NCCL transfers, from their match until they are
// submitted to the device.
//
// For the launch order (core/launch_order.h), a message is an operation of two members, sender and
// receiver. Each proposes a stamp when the receive has matched the message, the sender decides, and
// both launch the message on the set's communicator when it is next among all launches of their
// rank. If collectives may have no position in that order, NCCL does not transfer messages.
//
// Messages with consecutive turns are submitted as one group of NCCL calls, which is one launch.
// Ranks may group differently: a kernel transfers all messages of such a group concurrently, so
// none of them waits for one that is later in the order. But NCCL sets up connections sequentially,
// so the first message between two ranks in one direction is not grouped with others.
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
  // Identifies a message in the launch order; it differs from all plan entries of the set.
  struct Id {
    int sender = 0;
    int receiver = 0;
    uint64_t number = 0;
  };
  // The set's lane, if messages can be launched on it and have a position in the order; otherwise
  // null.
  using LaneInOrder = std::function<const DeviceLane*()>;
  // Called when an operation's message has been submitted; its event is set.
  using Launched = std::function<void(const OperationPtr& operation)>;

  MessageLaunches(LaunchOrder& order, const SetPlace& place, LaneInOrder lane_in_order,
                  Launched launched)
      : order_(order),
        place_(place),
        lane_in_order_(std::move(lane_in_order)),
        launched_(std::move(launched)) {}

  // Whether NCCL can transfer the operation's tensor to or from another member.
  bool CanCarry(const Operation& operation, int peer) const;

  // As in LaunchOrder.
  uint64_t Propose(const Id& id) { return order_.Propose(Incarnation(), SequenceOf(id)); }
  // Decided messages are launched in their turn.
  Status Agree(const Id& id, uint64_t stamp, const OperationPtr& operation);

  // Launches the messages whose turn it is; returns whether there was progress. A failed status is
  // an NCCL error.
  Result<bool> Step();
  bool empty() const { return agreed_.empty() && issued_.empty(); }
  // Whether messages were passed to NCCL but not launched yet.
  bool IsIssued() const { return !issued_.empty(); }
  // An asynchronous NCCL error, while the set's lane is used.
  Status Check() const { return lane_->Poll(); }

  // The set has failed: nothing more is launched. Returns the operations that NCCL may have
  // started; they have an event, unless the device failed to record one.
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
  const DeviceLane* lane_ = nullptr;   // set by the first message
  std::map<uint64_t, Agreed> agreed_;  // by sequence
  std::vector<Agreed> issued_;         // one group of these
  // Peers to which a message was launched (true), or from which (false).
  std::set<std::pair<uint32_t, bool>> connected_;
};

}  // namespace horoscale
