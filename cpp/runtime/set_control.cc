#include "runtime/set_control.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/codec.h"

namespace horoscale {
namespace {

// The coordinator assigns slots with its own limit; members accept its decisions.
constexpr size_t kMemberCacheCapacity = 1'000'000;

// The limit is checked with each report, so reports are timed such that one is due at the limit.
double StallPeriod(const Config& config) {
  const double warning = config.stall_check ? config.stall_warning_seconds : 0;
  const double limit = config.stall_shutdown_seconds;
  if (limit <= 0) return warning;
  return warning > 0 ? limit / std::ceil(limit / warning) : limit;
}

CoordinatorOptions OptionsFor(const Config& config, const SetPlace& place, const Limits& limits,
                              bool spans_hosts) {
  CoordinatorOptions options;
  options.process_set_id = place.id();
  options.ranks = place.ranks;
  options.cache_capacity = static_cast<size_t>(config.cache_capacity);
  options.limits = limits;
  options.spans_hosts = spans_hosts;
  options.is_tuned = config.autotune && place.ranks.size() > 1;
  options.priority_scheduling = config.priority_scheduling;
  options.stall_warning_seconds = StallPeriod(config);
  // join() is of the global set.
  options.goes_on_without_joined = place.id() == 0;
  options.average_over_participants = config.average_over_participants;
  return options;
}

// The size of this rank's input, limited to the maximum of a request.
int64_t BytesOf(const Operation& operation) {
  int64_t bytes = 0;
  for (const TensorMemory& tensor : operation.tensors) {
    int64_t of_tensor = 0;
    if (__builtin_mul_overflow(tensor.rows, tensor.row_bytes, &of_tensor) ||
        __builtin_add_overflow(bytes, of_tensor, &bytes)) {
      return kMaxRequestDataBytes;
    }
  }
  return std::min(bytes, kMaxRequestDataBytes);
}

}  // namespace

SetControl::SetControl(Transport& transport, const Config& config, const SetPlace& place,
                       SetCounters& counters, SetHost& host, PlanSink& plan)
    : transport_(transport),
      place_(place),
      counters_(counters),
      host_(host),
      plan_(plan),
      tree_(static_cast<uint32_t>(place.ranks.size()), transport.HostsOf(place.ranks)),
      parent_(place.IsMember() ? place.ranks[tree_.parent(place.self)] : place.rank),
      member_(place.id(), place.self, static_cast<uint32_t>(place.ranks.size()),
              kMemberCacheCapacity),
      tuner_({.fusion_threshold_bytes = config.fusion_threshold_bytes,
              .partition_bytes = config.partition_bytes,
              .credit_bytes = config.credit_bytes,
              .pace_seconds = config.pace_seconds},
             config.autotune && place.IsMember() && place.self == 0 && place.ranks.size() > 1) {
  if (!place.IsMember()) return;
  if (place.self == 0) {
    coordinator_.emplace(
        OptionsFor(config, place, tuner_.Get(), !transport.HostsOf(place.ranks).empty()));
  } else if (!tree_.children(place.self).empty()) {
    aggregator_.emplace(tree_.Group(place.self), config.report_patience_seconds);
  }
}

Status SetControl::Submit(const Operation& operation) {
  if (!coordinator_ || !HasFreeFirstDimension(operation.request.signature.kind)) {
    return member_.Submit(operation.request, operation.token);
  }
  Request request = operation.request;
  request.own_bytes = BytesOf(operation);
  return member_.Submit(request, operation.token);
}

Status SetControl::OnFrame(int from_rank, FrameKind kind, std::span<const std::byte> payload,
                           double now) {
  if (kind == FrameKind::kReport && IsChild(from_rank)) return TakeReport(from_rank, payload, now);
  if (kind == FrameKind::kGroupReport && IsChild(from_rank)) {
    return TakeGroupReport(from_rank, payload, now);
  }
  if (kind == FrameKind::kPlan && !coordinator_ && from_rank == parent_) {
    const auto entry = DecodePlanEntry(payload);
    if (!entry.ok()) return entry.status();
    PassDown(payload);
    return Apply(*entry, now);
  }
  return Status::Protocol("it sent a frame that its role does not allow");
}

// The member's reports use the same path, and arrive after it.
Status SetControl::OnPost(uint32_t member, const Post& post, double now) {
  if (coordinator_) return coordinator_->OnPost(member, post, now);
  if (!aggregator_) return Status::Ok();
  Report report;
  report.applied_sequence = post.applied_sequence;
  report.posted = post;
  return aggregator_->OnReport({{{{member}, std::move(report)}}}, now);
}

bool SetControl::IsChild(int rank) const {
  const bool has_children = coordinator_ || aggregator_;
  return has_children && rank != place_.rank && place_.Contains(rank) &&
         tree_.parent(place_.IndexOf(rank)) == place_.self;
}

Status SetControl::TakeReport(int from_rank, std::span<const std::byte> payload, double now) {
  auto report = DecodeReport(payload);
  if (!report.ok()) return report.status();
  const uint32_t member = place_.IndexOf(from_rank);
  if (coordinator_) return coordinator_->OnReport(member, *report, now);
  return aggregator_->OnReport({{{{member}, report.TakeValue()}}}, now);
}

Status SetControl::TakeGroupReport(int from_rank, std::span<const std::byte> payload, double now) {
  const auto report = DecodeGroupReport(payload);
  if (!report.ok()) return report.status();
  const uint32_t child = place_.IndexOf(from_rank);
  for (const JointReport& part : report->parts) {
    for (const uint32_t member : part.members) {
      if (tree_.GoesThrough(member, child)) continue;
      return Status::Protocol("its report contains members of other groups");
    }
  }
  return coordinator_ ? coordinator_->OnReport(*report, now) : aggregator_->OnReport(*report, now);
}

Result<bool> SetControl::Step(double now) {
  const auto reported = SendReport(now);
  if (!reported.ok()) return reported;
  const auto planned = PublishPlan(now);
  if (!planned.ok()) return planned;
  return *reported || *planned;
}

Result<bool> SetControl::SendReport(double now) {
  auto report = member_.TakeReport();
  if (!report) return PassOnReports(now);
  counters_.cache_hits += report->hits.size() + report->unnamed_hits.size();
  counters_.cache_misses += report->requests.size();
  if (coordinator_) {
    HS_RETURN_IF_ERROR(coordinator_->OnReport(place_.self, *report, now));
  } else if (aggregator_) {
    HS_RETURN_IF_ERROR(aggregator_->OnReport({{{{place_.self}, std::move(*report)}}}, now));
    PassOnReports(now);
  } else {
    transport_.Send(parent_, {FrameKind::kReport, place_.channel}, Encode(*report));
  }
  return true;
}

bool SetControl::PassOnReports(double now) {
  bool moved = false;
  while (aggregator_) {
    const auto report = aggregator_->TakeReport(now);
    if (!report) break;
    transport_.Send(parent_, {FrameKind::kGroupReport, place_.channel}, Encode(*report));
    moved = true;
  }
  return moved;
}

void SetControl::PassDown(std::span<const std::byte> plan_entry) {
  for (const uint32_t child : tree_.children(place_.self)) {
    transport_.Send(place_.ranks[child], {FrameKind::kPlan, place_.channel}, plan_entry);
  }
}

Result<bool> SetControl::PublishPlan(double now) {
  if (!coordinator_ || !coordinator_->HasWork()) return false;
  const std::vector<PlanEntry> plan = coordinator_->TakePlan(now);
  for (const PlanEntry& entry : plan) {
    if (place_.ranks.size() > 1) PassDown(Encode(entry));
    // Only the coordinator knows the limits; the plan contains their consequences.
    tuner_.OnEntry(*coordinator_, entry, now);
    HS_RETURN_IF_ERROR(Apply(entry, now));
  }
  TellTuned();
  return !plan.empty();
}

void SetControl::TellTuned() {
  for (const TuningRecord& record : tuner_.TakeRecords()) host_.OnTuned(place_, record);
}

Status SetControl::Apply(const PlanEntry& entry, double now) {
  auto action = member_.Apply(entry);
  if (!action.ok()) return action.status();
  plan_.OnPlanned(action.TakeValue(), now);
  return Status::Ok();
}

void SetControl::OnExecuted(uint64_t sequence) {
  if (coordinator_) coordinator_->OnExecuted(sequence);
}

void SetControl::OnBucket(const EncodingChooser::Bucket& bucket, bool shows_pace) {
  if (coordinator_) tuner_.OnBucket(*coordinator_, bucket, shows_pace);
}

double SetControl::MaxSleepSeconds(double now) const {
  if (!HoldsReports()) return std::numeric_limits<double>::infinity();
  return std::max(*aggregator_->Deadline() - now, 0.0);
}

void SetControl::Abandon() {
  late_ = Late();
  coordinator_.reset();
  aggregator_.reset();
  (void)member_.Abandon();
}

std::vector<StallReport> SetControl::TakeStallReports(double now) {
  return coordinator_ ? coordinator_->TakeStallReports(now) : std::vector<StallReport>{};
}

std::vector<StallReport> SetControl::Waiting(size_t most) const {
  return coordinator_ ? coordinator_->Waiting(most) : std::vector<StallReport>{};
}

}  // namespace horoscale
