// ProcessSet: one set on this rank: its member (and, on its lowest rank, its coordinator), its
// channel, and the queue of what the plan says comes next. Everything here is called by the
// engine's owner.
//
// The global set is set 0 and has no code of its own. Sets know nothing of each other.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backends/fused_operation.h"
#include "backends/mpi/mpi_communicators.h"
#include "backends/nccl/device_lane.h"
#include "core/aggregator.h"
#include "core/autotuner.h"
#include "core/coordinator.h"
#include "core/launch_order.h"
#include "core/member.h"
#include "core/pace.h"
#include "core/report_tree.h"
#include "core/step_clock.h"
#include "runtime/config.h"
#include "runtime/operation.h"
#include "runtime/set_messages.h"
#include "transport/transport.h"

namespace horoscale {

struct SetCounters {
  uint64_t operations = 0;
  uint64_t bytes = 0;  // of the inputs
  uint64_t buckets = 0;
  uint64_t mpi_buckets = 0;     // of them, run by MPI's own collectives
  uint64_t device_buckets = 0;  // of them, of CUDA tensors
  uint64_t nccl_buckets = 0;    // of these, run by NCCL
  uint64_t fused_tensors = 0;   // that shared their bucket with others
  uint64_t cache_hits = 0;
  uint64_t cache_misses = 0;
  double negotiate_seconds = 0;  // enqueue → planned: waiting for peers
  double execute_seconds = 0;    // of buckets
};

class ProcessSet {
 public:
  // The runtime, as its sets see it.
  class Host {
   public:
    virtual ~Host() = default;
    virtual void Finish(const OperationPtr& operation, Status status) = 0;
    // Performs add_process_set or remove_process_set here; the new id, or 0.
    virtual Result<int64_t> Register(const Signature& signature) = 0;
    // Operations have been given to the device, or are done.
    virtual void OnLaunched() = 0;
    virtual LaunchOrder& launch_order() = 0;
    // The set has failed, before its pending operations are finished.
    virtual void OnFailed(const ProcessSet& set) = 0;
    virtual void OnBucketDone(const ProcessSet& set, const Action& action, double started_at) = 0;
    virtual void OnTuned(const ProcessSet& set, const Autotuner::Record& record) = 0;
    // A stall is being reported: rank 0 gets to know.
    virtual void OnStall(const ProcessSet& set, const StallNotice& notice) = 0;
    // Asks the other members whether their engines run; which of them have not answered.
    virtual void Probe(const ProcessSet& set) = 0;
    virtual std::vector<int> Silent(const ProcessSet& set) const = 0;
  };

  ProcessSet(Host& host, Transport& transport, const Config& config, ChannelId channel,
             std::vector<int> ranks, std::shared_ptr<MpiSetCommunicator> mpi);

  ChannelId channel() const { return channel_; }
  int id() const { return static_cast<int>(channel_.process_set); }
  const std::vector<int>& ranks() const { return ranks_; }
  bool Contains(int rank) const;
  // Null where MPI's collectives are not used.
  const std::shared_ptr<MpiSetCommunicator>& mpi() const { return mpi_; }
  const SetCounters& counters() const { return counters_; }
  const Status& failure() const { return failure_; }
  uint64_t executed_sequence() const { return executed_sequence_; }

  void Submit(OperationPtr operation);
  void OnFrame(int from_rank, FrameKind kind, std::span<const std::byte> payload);

  // Advances as far as one chunk; returns whether anything moved.
  bool Step(double now);
  // Whether Step() could do anything without news from outside.
  bool Busy() const;
  // Whether it holds what other members have said, to be passed on within a millisecond.
  bool HoldsReports() const { return aggregator_ && aggregator_->Deadline(); }
  // How long it may be left alone: an operation that MPI itself runs wakes nobody when it ends, nor
  // does a report that is held for too long.
  double MaxSleepSeconds(double now) const;
  // Whether the device is at work for it, of which nothing but polling tells.
  bool WaitsForDevice() const {
    return !launched_.empty() || (collective_ && queue_.front().common.on_device);
  }
  bool HasLaunched() const { return !launched_.empty(); }
  bool HasPending() const { return !pending_.empty() || !messages_.pending().empty(); }
  bool HasPending(Token token) const { return pending_.contains(token); }

  // Reports who keeps the others waiting (on the coordinator) and what does not advance, and ends
  // it where the user set a limit.
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
  // What Poison() tells the others, also of a set that is not registered here.
  static void SendPoison(Transport& transport, ChannelId channel, const std::vector<int>& ranks,
                         const Status& cause);
  // A member has left after it executed entry `sequence`: what it took part in is finished first.
  void FailAfter(uint64_t sequence, const Status& cause);

 private:
  bool StepMessages();
  bool SendReport(double now);
  bool PassOnReports(double now);
  void PassDown(std::span<const std::byte> plan_entry);
  bool IsChild(int rank) const;
  Status TakeReport(int from_rank, std::span<const std::byte> payload, double now);
  Status TakeGroupReport(int from_rank, std::span<const std::byte> payload, double now);
  bool PublishPlan(double now);
  void Tune(const PlanEntry& entry, double now);
  void SetLimits();
  Status TakeFrame(int from_rank, FrameKind kind, std::span<const std::byte> payload);
  Status Apply(const PlanEntry& entry, double now);
  bool Advance(double now);
  Status Start(const Action& action, double now);
  Status StartBucket(const Action& action);
  Status StartCollective(const Action& action);
  void FinishFront(double now);
  void FinishAction(const Action& action, FusedOperation* fused, double started_at, double now);
  void TakeResults(const Action& action, FusedOperation& fused);
  // CUDA tensors: process_set_device.cc.
  Status StartOnDevice(const Action& action);
  bool IsLaunched(const Action& action) const;
  void ProposeLaunch(const Action& action);
  Status TakeStamp(int from_rank, std::span<const std::byte> payload);
  Status CollectStamp(uint32_t member, LaunchStamp proposal);
  void OnFrontLaunched();
  bool FinishLaunched(double now);
  void EndLane();
  bool FinishFailed(double now);
  Operation* Find(Token token) const;  // null: not pending here
  void FinishToken(Token token, const Status& status);
  void Finish(const OperationPtr& operation, const Status& status);
  void OnPoison(int from_rank, std::span<const std::byte> payload);
  void CountPlanned(Operation& operation, double now);
  void CheckMissing(double now);
  enum class Due { kNo, kWarning, kEnd };
  Due CheckStuck(double since, double now);
  void CheckProgress(double now);
  void CheckCoordinator(double now);
  void CheckBlocked(double now);
  void CheckMessages(double now);
  std::vector<int> MissedBy(const Operation& operation) const;
  void DescribeMessages(double now, std::vector<std::string>& lines) const;
  void DescribePending(double now, std::vector<std::string>& lines) const;

  Host& host_;
  Transport& transport_;
  const Config& config_;
  const ChannelId channel_;
  const std::vector<int> ranks_;
  const std::shared_ptr<MpiSetCommunicator> mpi_;
  const uint32_t self_;  // index in ranks_

  const ReportTree tree_;
  const int parent_;  // the rank that this one reports to; on the coordinator its own

  Member member_;
  std::optional<Coordinator> coordinator_;
  std::optional<Aggregator> aggregator_;  // where others report to this rank, but the coordinator
  std::optional<Autotuner> tuner_;        // of its limits, where asked for
  Pace pace_;                             // bounds them
  StepClock step_clock_;
  std::unordered_map<Token, OperationPtr> pending_;
  SetMessages messages_;  // sends and receives, which the plan knows nothing of

  std::deque<Action> queue_;            // front: running if fused_ or collective_ are set
  std::unique_ptr<Exchange> exchange_;  // opened by the first operation that moves data
  std::unique_ptr<FusedOperation> fused_;
  std::unique_ptr<Collective> collective_;
  bool is_run_by_mpi_ = false;  // the collective
  // What the device is at work for, in the order of the plan.
  struct Launched {
    Action action;
    std::unique_ptr<FusedOperation> fused;
    double started_at;
  };
  std::deque<Launched> launched_;
  std::unique_ptr<DeviceLane> lane_;         // made by the first operation on CUDA tensors
  std::optional<StampCollector> collector_;  // on the coordinator
  bool has_company_;                         // other sets have been registered by now
  double abort_deadline_ = 0;                // of what failed while it was at work
  double started_at_ = 0;
  double progressed_at_ = 0;  // of what is running, as the next
  double stuck_told_at_ = 0;
  double probed_at_ = 0;
  uint64_t executed_sequence_ = 0;

  Status failure_;
  std::optional<uint64_t> fail_after_;
  Status leaving_cause_;
  SetCounters counters_;
};

}  // namespace horoscale
