// SetControl: a set's control half, which creates the plan from the members' submissions.
//
// It takes submissions and frames, and produces actions in plan order. It does not access tensors
// or transfer data. Called by the engine's owner.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/aggregator.h"
#include "core/coordinator.h"
#include "core/member.h"
#include "core/report_tree.h"
#include "core/tuner.h"
#include "runtime/config.h"
#include "runtime/operation.h"
#include "runtime/set_counters.h"
#include "runtime/set_host.h"
#include "runtime/set_place.h"
#include "transport/transport.h"

namespace horoscale {

// Receives the plan.
class PlanSink {
 public:
  virtual ~PlanSink() = default;
  virtual void OnPlanned(Action action, double now) = 0;
};

class SetControl {
 public:
  SetControl(Transport& transport, const Config& config, const SetPlace& place,
             SetCounters& counters, SetHost& host, PlanSink& plan);

  // A failed status concerns only this operation.
  Status Submit(const Operation& operation);

  // The member, for operations that may be posted instead of reported (set_posts.h).
  const Member& member() const { return member_; }
  std::optional<Post> TakePost() { return member_.TakePost(); }
  void EndPosted() { (void)member_.EndPosted(); }

  // A member of this host has posted: notifies the coordinator. A failed status, here and below,
  // means that the members' states have diverged.
  Status OnPost(uint32_t member, const Post& post, double now);
  Status OnFrame(int from_rank, FrameKind kind, std::span<const std::byte> payload, double now);

  // Sends this rank's reports, forwards those of others, and plans ready operations; returns
  // whether there was progress.
  Result<bool> Step(double now);

  void OnExecuted(uint64_t sequence);
  // Records how long a bucket took. `shows_pace`: whether that shows what the network between hosts
  // carries.
  void OnBucket(const EncodingChooser::Bucket& bucket, bool shows_pace);
  // Records the relative error of an encoding in an adaptive operation that has ended.
  void OnLost(const std::string& name, const Encoding& encoding, double error) {
    member_.NoteError(name, encoding, error);
  }

  // Whether Step() could make progress without external events.
  bool Busy() const { return HoldsReports() || (coordinator_ && coordinator_->HasWork()); }
  // Whether it holds reports of other members, which must be forwarded within a millisecond.
  bool HoldsReports() const { return aggregator_ && aggregator_->Deadline(); }
  // How long the owner may sleep.
  double MaxSleepSeconds(double now) const;

  // The set has failed: stops planning.
  void Abandon();

  // For watchers.
  bool IsCoordinator() const { return coordinator_.has_value(); }
  uint64_t applied_sequence() const { return member_.applied_sequence(); }
  // Empty on other members.
  std::vector<StallReport> TakeStallReports(double now);
  std::vector<StallReport> Waiting(size_t most) const;
  // Of each member; empty on other members, whom it is not told.
  const std::vector<Lateness::Member>& Late() const {
    return coordinator_ ? coordinator_->lateness().members() : late_;
  }

 private:
  bool IsChild(int rank) const;
  Status TakeReport(int from_rank, std::span<const std::byte> payload, double now);
  Status TakeGroupReport(int from_rank, std::span<const std::byte> payload, double now);
  Result<bool> SendReport(double now);
  bool PassOnReports(double now);
  void PassDown(std::span<const std::byte> plan_entry);
  Result<bool> PublishPlan(double now);
  Status Apply(const PlanEntry& entry, double now);
  void TellTuned();

  Transport& transport_;
  const SetPlace& place_;
  SetCounters& counters_;
  SetHost& host_;
  PlanSink& plan_;

  const ReportTree tree_;
  const int parent_;  // the rank that this one reports to; on the coordinator, itself

  Member member_;
  Tuner tuner_;  // of the coordinator
  std::optional<Coordinator> coordinator_;
  std::vector<Lateness::Member> late_;    // of a coordinator that has ended
  std::optional<Aggregator> aggregator_;  // if others report to this rank, and it is not the
                                          // coordinator
};

}  // namespace horoscale
