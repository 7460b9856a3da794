// ProcessSet: one set on this rank.
//
// Submissions and frames go to the control half (set_control.h), which passes planned entries to
// the execution half (set_execution.h). Small operations can bypass both (set_posts.h), and
// messages between two ranks always do (set_messages.h). A watcher (set_watch.h) reads their state.
// This class connects them: it holds the table of pending operations, and handles the end of the
// set. The engine's owner calls all functions.
//
// The global set is set 0 and needs no special code. Sets are independent of each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/mpi/mpi_communicators.h"
#include "core/messages.h"
#include "runtime/config.h"
#include "runtime/message_launches.h"
#include "runtime/operation.h"
#include "runtime/pending_operations.h"
#include "runtime/set_control.h"
#include "runtime/set_counters.h"
#include "runtime/set_execution.h"
#include "runtime/set_host.h"
#include "runtime/set_messages.h"
#include "runtime/set_place.h"
#include "runtime/set_posts.h"
#include "runtime/set_watch.h"
#include "transport/transport.h"

namespace horoscale {

// The progress of a set, for the metrics.
struct SetProgress {
  std::string last_operation;  // the last finished collective
  std::string executing;       // the operation that this rank is executing
  size_t pending = 0;
  std::string pending_operation;  // the oldest pending operation
  double pending_seconds = 0;     // time since its call
};

class ProcessSet final : private SetExecution::Owner {
 public:
  ProcessSet(SetHost& host, Transport& transport, const Config& config, ChannelId channel,
             std::vector<int> order, std::shared_ptr<MpiSetCommunicator> mpi);

  ChannelId channel() const { return place_.channel; }
  int id() const { return place_.id(); }
  const std::vector<int>& ranks() const { return place_.ranks; }
  const std::vector<int>& order() const { return place_.order; }
  bool Contains(int rank) const { return place_.Contains(rank); }
  // Null if MPI's collectives are not used.
  const std::shared_ptr<MpiSetCommunicator>& mpi() const { return execution_.mpi(); }
  const std::shared_ptr<SetResiduals>& residuals() const { return execution_.residuals(); }
  const SetCounters& counters() const { return counters_; }
  SetProgress Progress(double now) const;
  // Of each member, in the order of ranks(); empty except on the set's lowest rank.
  const std::vector<Lateness::Member>& Late() const { return control_.Late(); }
  // Why collectives fail; messages may continue.
  const Status& failure() const { return failure_.ok() ? departure_ : failure_; }
  // The progress of this rank.
  ExecutedUpTo executed() const {
    return {place_.channel.process_set, place_.channel.incarnation, execution_.ended_sequence(),
            posts_.ended()};
  }

  void Submit(OperationPtr operation);
  void OnFrame(int from_rank, FrameKind kind, std::span<const std::byte> payload);

  // Makes progress by at most one chunk; returns whether there was any.
  bool Step(double now);
  // Whether Step() could make progress without external events.
  bool Busy() const {
    return !pending_.empty() || messages_.Busy() || execution_.Busy() || !leavers_.empty() ||
           control_.Busy();
  }
  bool HoldsReports() const { return control_.HoldsReports(); }
  // How long the owner may sleep.
  double MaxSleepSeconds(double now) const {
    return std::min(control_.MaxSleepSeconds(now), execution_.MaxSleepSeconds(now));
  }
  bool WaitsForDevice() const { return execution_.WaitsForDevice() || messages_.WaitsForDevice(); }
  bool HasLaunched() const { return execution_.HasLaunched() || messages_.HasLaunched(); }
  bool HasPending() const { return !pending_.empty() || !messages_.pending().empty(); }
  bool HasPending(Token token) const { return pending_.Find(token) != nullptr; }

  // Reports operations that do not advance, and fails them after the user's limit.
  void CheckStalls(double now);
  // Describes what this rank is waiting for, in lines, for the user.
  std::vector<std::string> DescribeState(double now) const;

  // Fails all pending and later operations. Operations that the device is executing are finished
  // when the device has stopped.
  void Fail(const Status& cause);
  // Ends the set: waits for the device for at most `seconds`, and finishes all failed operations.
  void Close(double seconds);
  // Fails the set on all members, because an operation was abandoned.
  void Poison(const Status& cause);
  // This rank removes the set alone, because it has lost a member. Notifies the other members,
  // between which messages may continue.
  void Leave();
  // Sends the notification of Poison(), also for a set that is not registered here.
  static void SendPoison(Transport& transport, ChannelId channel, const std::vector<int>& ranks,
                         const Status& cause);
  // A member that has left, and its progress.
  struct Leaver {
    int rank;
    bool cleanly;
    ExecutedUpTo executed;
    Status cause;
  };
  // Finishes the operations in which it participated, then fails everything else. If it left
  // normally, messages of host memory continue among the other members.
  void FailAfter(Leaver leaver);

 private:
  // The last collective, by the parts of its name, because formatting each name would cost time.
  struct Finished {
    OpKind kind = OpKind::kAllreduce;
    std::string name;
    uint64_t index = 0;
  };

  void OnEnded(const Action& action, const FusedOperation* fused, double started_at,
               double now) override;
  Status TakeFrame(int from_rank, FrameKind kind, std::span<const std::byte> payload);
  Result<bool> Advance(double now);
  Result<bool> StepPosts(double now);
  Result<bool> StepMessages();
  bool FailAfterLeavers();
  void Lose(const Leaver& leaver);
  void AbandonCollectives();
  bool FinishFailed(double now);
  void Count(const Message& message, const Status& status);
  void FinishToken(Token token, const Status& status);
  void FinishTaken(const OperationPtr& operation, const Status& status);
  void Finish(const OperationPtr& operation, const Status& status);
  void OnPoison(int from_rank, std::span<const std::byte> payload);
  void OnLeave(int from_rank, const Goodbye& message);

  SetHost& host_;
  Transport& transport_;
  const SetPlace place_;
  SetCounters counters_;
  Finished last_;
  PendingOperations pending_;
  SetExecution execution_;
  SetControl control_;
  SetPosts posts_;
  MessageLaunches launches_;
  SetMessages messages_;  // sends and receives, which are not planned
  SetWatch watch_;

  Status failure_;    // failure of the whole set
  Status departure_;  // a member has left: failure of collectives, and of messages with members
                      // that left
  std::vector<Leaver> leavers_;
};

}  // namespace horoscale
