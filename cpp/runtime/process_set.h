// ProcessSet: one set on this rank.
//
// Submissions and frames go to its control half (set_control.h), which hands what is planned to its
// execution half (set_execution.h); small operations may do without both (set_posts.h), messages
// between two ranks always do (set_messages.h); a watcher
// (set_watch.h) reads them. What is here joins them: the table of pending operations, and the set's
// end. Everything is called by the engine's owner.
//
// The global set is set 0 and has no code of its own. Sets know nothing of each other.
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

// What a set is at, for the metrics.
struct SetProgress {
  std::string last_operation;  // the collective that was finished last
  std::string executing;       // what this rank is at work for
  size_t pending = 0;
  std::string pending_operation;  // of these, the oldest
  double pending_seconds = 0;     // since it was called
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
  // Null where MPI's collectives are not used.
  const std::shared_ptr<MpiSetCommunicator>& mpi() const { return execution_.mpi(); }
  const std::shared_ptr<SetResiduals>& residuals() const { return execution_.residuals(); }
  const SetCounters& counters() const { return counters_; }
  SetProgress Progress(double now) const;
  // Of each member, in the order of ranks(); empty but on the set's lowest rank.
  const std::vector<Lateness::Member>& Late() const { return control_.Late(); }
  // Why collectives fail; messages may go on.
  const Status& failure() const { return failure_.ok() ? departure_ : failure_; }
  // How far this rank has come.
  ExecutedUpTo executed() const {
    return {place_.channel.process_set, place_.channel.incarnation, execution_.ended_sequence(),
            posts_.ended()};
  }

  void Submit(OperationPtr operation);
  void OnFrame(int from_rank, FrameKind kind, std::span<const std::byte> payload);

  // Advances as far as one chunk; returns whether anything moved.
  bool Step(double now);
  // Whether Step() could do anything without news from outside.
  bool Busy() const {
    return !pending_.empty() || messages_.Busy() || execution_.Busy() || !leavers_.empty() ||
           control_.Busy();
  }
  bool HoldsReports() const { return control_.HoldsReports(); }
  // How long it may be left alone.
  double MaxSleepSeconds(double now) const {
    return std::min(control_.MaxSleepSeconds(now), execution_.MaxSleepSeconds(now));
  }
  bool WaitsForDevice() const { return execution_.WaitsForDevice() || messages_.WaitsForDevice(); }
  bool HasLaunched() const { return execution_.HasLaunched() || messages_.HasLaunched(); }
  bool HasPending() const { return !pending_.empty() || !messages_.pending().empty(); }
  bool HasPending(Token token) const { return pending_.Find(token) != nullptr; }

  // Reports what does not advance, and ends it where the user set a limit.
  void CheckStalls(double now);
  // For the user who asks what this rank waits for, in lines.
  std::vector<std::string> DescribeState(double now) const;

  // Fails everything pending and everything that comes later. What the device is at work for is
  // finished when it has been made to stop.
  void Fail(const Status& cause);
  // The end: waits for the device for so long, and finishes all that has failed.
  void Close(double seconds);
  // The same on all members: an operation has been given up half-way.
  void Poison(const Status& cause);
  // This rank removes the set by itself, because it has lost a member: the other members are told,
  // among whom messages may go on.
  void Leave();
  // What Poison() tells the others, also of a set that is not registered here.
  static void SendPoison(Transport& transport, ChannelId channel, const std::vector<int>& ranks,
                         const Status& cause);
  // A member that has left, and how far it had come.
  struct Leaver {
    int rank;
    bool cleanly;
    ExecutedUpTo executed;
    Status cause;
  };
  // What it took part in is finished first; then everything fails. If it left in good order
  // messages of the host go on among the others.
  void FailAfter(Leaver leaver);

 private:
  // A collective, by what names it: to build a name for each one would take time.
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
  SetMessages messages_;  // sends and receives, which the plan knows nothing of
  SetWatch watch_;

  Status failure_;    // of everything
  Status departure_;  // a member left first: of collectives, and of messages with those that left
  std::vector<Leaver> leavers_;
};

}  // namespace horoscale
