// Coordinator: makes the decisions of a process set, on its lowest rank. Takes reports and produces
// plan entries. Pure.
//
// It combines the Negotiator (units that are ready on every member), the SlotTable of the response
// cache (assignment of slots), the Scheduler (the most urgent units within the credit), the
// FusionPlanner (units that share a bucket), the StallWatch (members that others wait for) and
// the Lateness (how often and how long others waited for each member).
// Members are indices 0 … size-1 into the set's sorted global ranks. Time is an argument, in
// seconds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/encoding_chooser.h"
#include "core/fusion_planner.h"
#include "core/lateness.h"
#include "core/limits.h"
#include "core/messages.h"
#include "core/name_table.h"
#include "core/negotiator.h"
#include "core/post_box.h"
#include "core/scheduler.h"
#include "core/slot_table.h"
#include "core/stall_watch.h"
#include "core/step_clock.h"
#include "core/step_profile.h"

namespace horoscale {

struct CoordinatorOptions {
  int process_set_id = 0;
  std::vector<int> ranks;  // sorted global ranks of the members
  size_t cache_capacity = 1024;
  Limits limits;
  bool spans_hosts = false;                // whether the members are on several
  bool is_tuned = false;                   // whether a Tuner asks for what it measures
  bool priority_scheduling = true;         // false: first in, first out
  double stall_warning_seconds = 60;       // 0: no reports
  bool goes_on_without_joined = true;      // false: operations that need a joined member fail
  bool average_over_participants = false;  // Average divides by their number instead of the set's
                                           // size
};

class Coordinator {
 public:
  explicit Coordinator(CoordinatorOptions options);

  // Sets the limits for entries that are published from now on.
  void SetLimits(const Limits& limits);

  // Takes a report of a member; kProtocol if it is invalid (unknown slot, key reported twice).
  Status OnReport(uint32_t member, const Report& report, double now);
  // Takes the reports of several members, combined by an Aggregator.
  Status OnReport(const GroupReport& report, double now);

  // Takes a member's post. An operation that all members post identically needs no plan; others are
  // planned as if they had been reported, as soon as this is detected. kProtocol as above.
  Status OnPost(uint32_t member, const Post& post, double now);

  // Returns the entries that can be published now, in order, within the credit.
  std::vector<PlanEntry> TakePlan(double now);

  // The local member has executed the entry: returns its bytes to the credit.
  void OnExecuted(uint64_t sequence);

  // What it took, where that shows what the network between hosts carries.
  void OnBucket(const EncodingChooser::Bucket& bucket);

  // For a Tuner. The usual step, after which steps are no longer observed; what was measured of the
  // network; and the encodings that have changed since the last call.
  std::optional<ProfiledStep> TakeProfile();
  NetworkState Network() const { return chooser_.Network(); }
  std::vector<EncodingChooser::Change> TakeEncodingChanges() { return chooser_.TakeChanges(); }

  // Whether TakePlan() could return something.
  bool HasWork() const;

  // Units that have waited too long, each once per warning period.
  std::vector<StallReport> TakeStallReports(double now);

  // All units that wait for members, at most `limit`, for state dumps. Their waiting times are not
  // set.
  std::vector<StallReport> Waiting(size_t limit) const;

  const Lateness& lateness() const { return lateness_; }

 private:
  // A report's statement about one unit.
  struct Said {
    UnitKey key;
    const Signature* signature;
    SharedSignature shared;  // null unless it is a hit
    int priority;
    int64_t own_bytes;
  };

  using Members = std::span<const uint32_t>;  // members with the same statement

  Status OnJointReport(Members members, const Report& report, double now);
  Status OnHits(Members members, const Report& report, double now);
  Status OnRequest(Members members, const Request& request, double now);
  Status OnSaid(Members members, const Said& said, const WaitClock& clock);
  Status OnJoin(uint32_t member, double now);
  Status ReportPost(uint32_t member, const PostBox::Said& said, const PostBox::Key& key,
                    const WaitClock& clock);
  Status ReportPosts(const PostBox::Key& key);
  Status ReportPostsOf(Members members, const UnitKey& key);
  Status OnErrors(Members members, const Report& report);
  Status CheckIndices(uint32_t member, const Report& report);
  Status Broken(uint32_t member, std::string_view what) const;

  void OnReady(UnitId id, double now);
  Encoding Choose(const Negotiator::Unit& unit, bool all_take_part, double now);
  void CountStep(const PlanEntry& entry, double now);
  void Fail(UnitId id, StatusCode code, std::string message);
  int64_t BytesOf(const Negotiator::Unit& unit) const;
  std::string JoinedObjection(UnitId id) const;
  std::string MismatchText(const Negotiator::Unit& unit) const;
  std::string DisplayNameOf(const Negotiator::Unit& unit) const;
  StallReport DescribeWait(UnitId id) const;
  StallReport DescribePosts(const PostBox::Waiting& waiting) const;
  void Forget(UnitId id);

  PlanEntry Publish(const Bucket& bucket);
  void Refer(const Negotiator::Unit& unit, PlanEntry& entry, PlanItem& item);

  CoordinatorOptions options_;
  NameTable names_;
  Negotiator negotiator_;
  SlotTable slots_;
  Scheduler scheduler_;
  StallWatch stall_watch_;
  PostBox posts_;
  EncodingChooser chooser_;
  StepClock step_clock_;
  std::optional<StepProfile> profile_;  // until it is taken
  Lateness lateness_;
  std::vector<PlanEntry> failures_;  // without a sequence number; first in the next plan
  std::vector<uint64_t> applied_;    // by member
  uint64_t next_sequence_ = 1;
  uint32_t last_joined_ = 0;
  uint64_t epoch_ = 0;  // number of times that all ranks have joined
};

}  // namespace horoscale
