// Runtime: one process's part of a job. The C ABI exposes it, and the engine drives it.
//
// User threads enqueue and wait; the engine's owner (see engine.h) executes. The inbox connects the
// two. The runtime gives each set its turn, and passes losses, frames and operations to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/departures.h"
#include "core/set_creations.h"
#include "core/wait_graph.h"
#include "runtime/config.h"
#include "runtime/early_frames.h"
#include "runtime/engine.h"
#include "runtime/inbox.h"
#include "runtime/mpi_sets.h"
#include "runtime/operation.h"
#include "runtime/probes.h"
#include "runtime/process_set.h"
#include "runtime/published_metrics.h"
#include "runtime/set_host.h"
#include "runtime/set_registry.h"
#include "runtime/step_times.h"
#include "runtime/timeline.h"
#include "runtime/topology.h"
#include "runtime/tuning_log.h"
#include "runtime/waiting_time.h"
#include "transport/transport.h"

namespace horoscale {

class Runtime final : private Engine::Work, private TransportSink, private SetHost {
 public:
  // kThread: a progress thread drives while no thread waits. kTurns: only Turn() drives, for
  // simulations of many ranks in one thread.
  enum class Driver { kThread, kTurns };

  Runtime(Config config, Topology topology, std::unique_ptr<Transport> transport,
          Driver driver = Driver::kThread, std::unique_ptr<MpiCommunicators> mpi = nullptr);
  ~Runtime() override;  // shuts down

  // The following may be called by any thread.

  // Enqueues an operation whose request, tensors and callback are set. A failed status means that
  // it was rejected. `will_wait`: a call of Wait() or Notify() follows, so no thread needs to be
  // woken.
  Status Enqueue(const OperationPtr& operation, bool will_wait);

  // Whether operations of this rank are not done.
  bool IsBusy() const { return inbox_.unfinished() > 0; }

  // Wakes the driving thread, if it sleeps, for enqueued operations.
  void Notify() { engine_.NotifyInput(); }

  // Waits for an operation; kTimeout if it is not done after `seconds` (negative: no limit).
  Status Wait(const OperationPtr& operation, double seconds);

  // Waits until an operation on CUDA tensors is launched, or done; kTimeout otherwise.
  Status WaitLaunched(const OperationPtr& operation, double seconds);

  // Makes one turn; returns whether there was progress.
  bool Turn() { return engine_.Turn(); }

  // Shuts down permanently. Local. An empty `reason` is a normal exit; otherwise it is the failure
  // that peers report. Only the first call has an effect; others return immediately.
  void Shutdown(const std::string& reason);

  const Topology& topology() const { return topology_; }
  std::vector<int> ProcessSetIds() const { return inbox_.SetIds(); }
  std::optional<std::vector<int>> ProcessSetRanks(int id) const { return inbox_.SetRanks(id); }

  // If MPI's own collectives are used, those of the next registered set of these ranks run on a
  // duplicate of this communicator, which must have exactly these ranks. Collective over it; waits
  // for at most START_TIMEOUT.
  Status UseCommunicator(std::vector<int> ranks, MpiHandle comm);

  Result<std::byte*> AllocateShared(size_t bytes) { return transport_->AllocateShared(bytes); }
  void FreeShared(std::byte* memory);
  // The offset of such memory for JoinShared() on ranks of this host; -1 unless all of it is such
  // memory.
  int64_t SharedOffset(const std::byte* memory, size_t bytes) const {
    return transport_->SharedOffset(memory, bytes);
  }
  // Maps one piece of `bytes` of each of these ranks contiguously: see JoinMemory().
  // kInvalidArgument for a piece that this rank can't access.
  Result<std::byte*> JoinShared(std::span<const int32_t> ranks, std::span<const int64_t> offsets,
                                size_t bytes) const;

  Status StartTimeline(const std::string& path, bool mark_cycles);
  Status StopTimeline();
  std::string MetricsJson();
  // The residuals of lossy encodings for a set's tensors; null if there is no such set. No
  // operation of the set with residuals may be pending.
  std::shared_ptr<SetResiduals> ResidualsOf(int process_set_id) const;
  // How long user threads have waited for operations so far.
  double WaitingSeconds() const { return waiting_time_.Seconds(); }

 private:
  // Engine::Work
  bool Step() override;
  bool HasWork() const override;
  size_t Gathering() const override { return inbox_.Gathering(); }
  double MaxSleepSeconds() override;
  std::vector<std::function<void()>> TakeCallbacks() override;
  bool HasCallbacks() const override { return !callbacks_.empty(); }
  // TransportSink
  void OnFrame(int from_rank, const FrameHeader& header,
               std::span<const std::byte> payload) override;
  void OnRankLost(int rank, const Status& reason) override;
  bool IsOver(ChannelId channel) const override { return sets_.IsOver(channel); }
  // SetHost
  void Finish(const OperationPtr& operation, Status status) override;
  Result<int64_t> Register(const Signature& signature) override;
  void OnLaunched() override { engine_.NotifyDone(); }
  LaunchOrder& launch_order() override { return launch_order_; }
  void OnFailed(const SetPlace& set, const Status& cause) override;
  void OnMemberLeft(const SetPlace& set, const Status& cause) override;
  double OnBucketDone(const SetPlace& set, const Action& action, double started_at) override;
  void OnTuned(const SetPlace& set, const TuningRecord& record) override;
  void OnStall(const SetPlace& set, const StallNotice& notice) override;
  void Probe(const SetPlace& set) override { probes_.Ask(set, departures_); }
  std::vector<int> Silent(const SetPlace& set) const override { return probes_.Silent(set); }

  Status WaitUntil(const OperationPtr& operation, double seconds,
                   const std::function<bool()>& reached);
  void DrainDevice();
  bool TakeInput();
  void AbandonSet(int id);
  void SubmitJoin(const OperationPtr& join);
  bool ReleaseHeldRemovals();
  void Tick(double now);
  void DumpState(double now) const;
  void Activate(const std::shared_ptr<ProcessSet>& set);
  Result<int64_t> AddSet(const Signature& signature);
  Result<int64_t> RemoveSet(int id);
  std::shared_ptr<ProcessSet> CreateSet(ChannelId channel, const std::vector<int>& order,
                                        std::shared_ptr<MpiSetCommunicator> mpi);
  void CreateNextSet(const std::vector<int>& order);
  bool IsRemovalOfFailedSet(const Operation& operation) const;
  void RemoveFailedSet(const OperationPtr& removal);
  // Sets that their members make.
  ChannelId ChannelOf(int leader, uint32_t number) const;
  void StartCreation(const OperationPtr& operation);
  void OnCreationFrame(int from_rank, std::span<const std::byte> payload);
  bool StepCreations();
  void TakeCreationStep(SetCreations::Step& step);
  void CheckCreations(double now);
  std::string DescribeCreation(uint64_t call, const Operation& operation, double now) const;
  void TellLoss(const std::shared_ptr<ProcessSet>& set, int rank);
  void OnGoodbye(int from_rank, std::span<const std::byte> payload);
  std::vector<int> DeliverTheLast(const std::string& reason);
  Goodbye MakeGoodbye(const std::string& reason, const std::vector<int>& unreached) const;
  void AbandonCreations(const SetPlace& set, const Status& cause);
  void AbandonRegistration(const Operation& operation);
  void JoinSet(const std::shared_ptr<ProcessSet>& set);
  void PublishMetrics();

  const Config config_;
  const Topology topology_;
  const std::unique_ptr<Transport> transport_;
  MpiSets mpi_;
  Inbox inbox_;
  Timeline timeline_;
  TuningLog tuning_log_;
  WaitingTime waiting_time_;

  // Accessed by the engine's owner.
  StepTimes step_times_{waiting_time_};
  SetRegistry sets_;
  SetCreations creations_;
  std::map<uint64_t, OperationPtr> creating_;  // by call
  std::vector<std::shared_ptr<ProcessSet>> active_;
  std::vector<OperationPtr> input_;          // operations that are being submitted
  std::vector<OperationPtr> held_removals_;  // removals of sets with pending operations here
  std::vector<std::function<void()>> callbacks_;
  EarlyFrames early_frames_;  // of sets that are not registered here yet
  Departures departures_;
  std::set<int> unreached_;   // lost ranks that only this rank can't reach
  LaunchOrder launch_order_;  // of all sets' CUDA operations
  double device_pause_ = 0;   // pause between polls of the device
  Probes probes_;
  WaitGraph wait_graph_;     // on rank 0
  OperationPtr join_;        // the last one
  uint32_t state_requests_;  // number of requests that were answered, or preceded this runtime
  double next_tick_ = 0;

  mutable std::mutex residuals_mutex_;
  std::map<int, std::weak_ptr<SetResiduals>> residuals_;  // by the set's id
  PublishedMetrics metrics_;
  MetricsCost metrics_cost_;  // the owner's

  std::atomic<bool> has_unsent_{false};
  std::atomic<bool> metrics_wanted_{false};
  std::atomic<bool> ended_{false};  // shut down, and all operations are finished

  Engine engine_;  // last: its thread uses everything above
};

}  // namespace horoscale
