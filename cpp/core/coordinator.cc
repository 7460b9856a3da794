#include "core/coordinator.h"

#include <algorithm>
#include <utility>

#include "base/rank_list.h"
#include "core/codec.h"
#include "core/mismatch.h"

namespace horoscale {
namespace {

size_t Capacity(const CoordinatorOptions& options) {
  return std::min<size_t>(options.cache_capacity, kMaxSlots / 2);
}

// Registrations are not repeated, so they are not cached.
bool IsCached(OpKind kind) {
  return kind != OpKind::kAddProcessSet && kind != OpKind::kRemoveProcessSet;
}

// Whole cached named units first and by slot: runs of slots take a few bytes.
void SortForTheWire(std::vector<PlanItem>& items) {
  if (items.size() == 1) return;
  auto is_plain = [](const PlanItem& item) {
    return item.whole && item.slot && !item.request && item.index == 0;
  };
  auto end = std::stable_partition(items.begin(), items.end(), is_plain);
  std::sort(items.begin(), end,
            [](const PlanItem& a, const PlanItem& b) { return *a.slot < *b.slot; });
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)),
      negotiator_(static_cast<uint32_t>(options_.ranks.size())),
      slots_(Capacity(options_)),
      scheduler_(FusionPlanner::Of(options_.limits), options_.limits.credit_bytes),
      stall_watch_(options_.stall_warning_seconds),
      posts_(static_cast<uint32_t>(options_.ranks.size()), options_.stall_warning_seconds),
      chooser_(options_.is_tuned),
      lateness_(options_.ranks.size()),
      applied_(options_.ranks.size()) {
  if (options_.is_tuned) profile_.emplace();
}

void Coordinator::SetLimits(const Limits& limits) {
  scheduler_.SetLimits(FusionPlanner::Of(limits), limits.credit_bytes);
}

Status Coordinator::Broken(uint32_t member, std::string_view what) const {
  const int rank = options_.ranks[member];
  return Status(StatusCode::kProtocol,
                "invalid report from rank " + std::to_string(rank) + " for process set " +
                    std::to_string(options_.process_set_id) + ": " + std::string(what),
                {.ranks = {rank}, .process_set_id = options_.process_set_id, .tensor = {}});
}

Status Coordinator::OnReport(uint32_t member, const Report& report, double now) {
  return OnJointReport({&member, 1}, report, now);
}

Status Coordinator::OnReport(const GroupReport& report, double now) {
  for (const JointReport& part : report.parts) {
    if (part.members.back() >= applied_.size()) {
      return Status::Protocol("invalid report: it contains members that do not exist");
    }
    HS_RETURN_IF_ERROR(OnJointReport(part.members, part.report, now));
  }
  return Status::Ok();
}

Status Coordinator::OnJointReport(Members members, const Report& report, double now) {
  for (const uint32_t member : members) {
    if (report.applied_sequence < applied_[member] || report.applied_sequence >= next_sequence_) {
      return Broken(member, "it claims to have applied entries that were not sent");
    }
    applied_[member] = report.applied_sequence;
    HS_RETURN_IF_ERROR(CheckIndices(member, report));
    if (report.posted) HS_RETURN_IF_ERROR(OnPost(member, *report.posted, now));
  }
  HS_RETURN_IF_ERROR(OnErrors(members, report));
  HS_RETURN_IF_ERROR(OnHits(members, report, now));
  for (const Request& request : report.requests) {
    HS_RETURN_IF_ERROR(OnRequest(members, request, now));
  }
  for (const uint32_t member : report.join ? members : Members()) {
    HS_RETURN_IF_ERROR(OnJoin(member, now));
  }
  if (slots_.HasRetired()) {
    slots_.Release(*std::min_element(applied_.begin(), applied_.end()), names_);
  }
  return Status::Ok();
}

// Unnamed calls are reported in order, so the indices in one report must follow those of the
// previous report. Duplicate indices are detected when the units are processed.
Status Coordinator::CheckIndices(uint32_t member, const Report& report) {
  size_t count = report.unnamed_hits.size();
  for (const Request& request : report.requests) count += request.name.empty() ? 1 : 0;
  const uint64_t before = negotiator_.AdvanceIndex(member, count);
  auto follows = [&](uint64_t index) { return index > before && index - before <= count; };
  for (const UnnamedHit& hit : report.unnamed_hits) {
    if (!follows(hit.index)) {
      return Broken(member, "the indices of its unnamed calls are not consecutive");
    }
  }
  for (const Request& request : report.requests) {
    if (request.name.empty() && !follows(request.index)) {
      return Broken(member, "the indices of its unnamed calls are not consecutive");
    }
  }
  return Status::Ok();
}

Status Coordinator::OnHits(Members members, const Report& report, double now) {
  const std::vector<int>& priorities = report.hit_priorities;
  const size_t hits = report.hits.size() + report.unnamed_hits.size();
  const std::vector<int64_t>& bytes = report.hit_bytes;
  if ((!priorities.empty() && (members.back() != 0 || priorities.size() != hits)) ||
      (!bytes.empty() && (members.back() != 0 || bytes.size() != hits))) {
    return Broken(members[0], "it sets priorities or sizes of other members' operations");
  }
  for (size_t i = 0; i < hits; ++i) {
    const bool named = i < report.hits.size();
    const UnnamedHit hit =
        named ? UnnamedHit{report.hits[i], 0} : report.unnamed_hits[i - report.hits.size()];
    const SlotTable::Content* content = slots_.Meaning(hit.slot, report.applied_sequence);
    if (content == nullptr || (content->name != kNoName) != named) {
      return Broken(members[0], "it hits slot " + std::to_string(hit.slot) +
                                    " of the cache, which holds a different request");
    }
    slots_.Touch(hit.slot, next_sequence_ - 1);
    names_.AddReference(content->name);
    HS_RETURN_IF_ERROR(OnSaid(members,
                              {{content->name, hit.index},
                               content->signature.get(),
                               content->signature,
                               priorities.empty() ? 0 : priorities[i],
                               bytes.empty() ? 0 : bytes[i]},
                              {now, now}));
  }
  return Status::Ok();
}

Status Coordinator::OnRequest(Members members, const Request& request, double now) {
  const NameId name = request.name.empty() ? kNoName : names_.Acquire(request.name);
  return OnSaid(
      members,
      {{name, request.index}, &request.signature, nullptr, request.priority, request.own_bytes},
      {now, now});
}

// Takes ownership of one reference to the name.
Status Coordinator::OnSaid(Members members, const Said& said, const WaitClock& clock) {
  HS_RETURN_IF_ERROR(ReportPostsOf(members, said.key));
  const Result<Negotiator::Outcome> outcome =
      negotiator_.Report(members, said.key, *said.signature, said.shared);
  if (!outcome.ok()) return Broken(members[0], outcome.status().message());
  if (outcome->is_new) {
    if (negotiator_.num_units() > kMaxPendingUnits * options_.ranks.size()) {
      return Broken(members[0], "it has more pending operations than allowed");
    }
    stall_watch_.Add(outcome->unit, clock);
    negotiator_.Get(outcome->unit).since = clock.since;
  } else {
    names_.Release(said.key.name);
  }
  if (members[0] == 0) {
    Negotiator::Unit& unit = negotiator_.Get(outcome->unit);
    if (options_.priority_scheduling) unit.priority = said.priority;
    unit.own_bytes = said.own_bytes;
  }
  if (outcome->is_ready) {
    lateness_.OnLast(members, negotiator_.Get(outcome->unit).since, clock.since);
    OnReady(outcome->unit, clock.since);
  }
  return Status::Ok();
}

Status Coordinator::OnPost(uint32_t member, const Post& post, double now) {
  const SlotTable::Content* content = slots_.Meaning(post.slot, post.applied_sequence);
  if (post.applied_sequence < applied_[member] || post.applied_sequence >= next_sequence_) {
    return Broken(member, "it claims to have applied entries that were not sent");
  }
  const bool is_named = post.index == 0;
  if (content == nullptr || (content->name != kNoName) != is_named || post.epoch != epoch_) {
    return Broken(member, "it posts an operation that it can't know");
  }
  if (!is_named && negotiator_.AdvanceIndex(member, 1) + 1 != post.index) {
    return Broken(member, "the indices of its unnamed calls are not consecutive");
  }
  applied_[member] = post.applied_sequence;
  slots_.Touch(post.slot, next_sequence_ - 1);
  const PostBox::Said said{post.slot, post.slot_since, content->signature};
  const PostBox::Key key{content->name, is_named ? post.occurrence : post.index};
  // Members that have joined without posting it never will. A known name may belong to the next
  // operation: some member has completed this one with posts that have not all arrived here.
  const std::optional<double> since = posts_.Since(key);
  const bool is_new = !since;
  if (is_new && (negotiator_.SomeJoined() || negotiator_.Knows({content->name, post.index}))) {
    return ReportPost(member, said, key, {now, now});
  }
  if (is_new) names_.AddReference(key.name);
  switch (posts_.Add(member, key, said, now)) {
    case PostBox::Outcome::kEnded:
      lateness_.OnLast({&member, 1}, since.value_or(now), now);
      names_.Release(key.name);
      return Status::Ok();
    case PostBox::Outcome::kWaits:
      return Status::Ok();
    case PostBox::Outcome::kDisagrees:
      return ReportPosts(key);
    case PostBox::Outcome::kTwice:
      return Broken(member, "it posts an operation twice");
    case PostBox::Outcome::kTooMany:
      break;
  }
  return Broken(member, "it has more pending operations than allowed");
}

Status Coordinator::ReportPost(uint32_t member, const PostBox::Said& said, const PostBox::Key& key,
                               const WaitClock& clock) {
  names_.AddReference(key.name);
  const UnitKey unit{key.name, key.name == kNoName ? key.number : 0};
  return OnSaid({&member, 1}, {unit, said.signature.get(), said.signature, 0, 0}, clock);
}

// Not all members post it: posts count as reports at the time of the posts.
Status Coordinator::ReportPosts(const PostBox::Key& key) {
  const auto [posted, clock] = posts_.Take(key);
  Status status;
  for (uint32_t member = 0; member < posted.size() && status.ok(); ++member) {
    if (posted[member]) status = ReportPost(member, *posted[member], key, clock);
  }
  if (!posted.empty()) names_.Release(key.name);
  return status;
}

// These members report an operation that others have posted. Their own posts with the same name
// have completed, otherwise they could not reuse the name: the other members' posts of it are in
// flight.
Status Coordinator::ReportPostsOf(Members members, const UnitKey& key) {
  if (posts_.empty()) return Status::Ok();
  if (key.name == kNoName) return ReportPosts({kNoName, key.index});
  const std::optional<PostBox::Key> posted = posts_.FirstNotPostedBy(members[0], key.name);
  return posted ? ReportPosts(*posted) : Status::Ok();
}

Status Coordinator::OnJoin(uint32_t member, double now) {
  for (const PostBox::Key& key : posts_.NotPostedBy(member)) {
    HS_RETURN_IF_ERROR(ReportPosts(key));
  }
  Result<std::vector<UnitId>> ready = negotiator_.Join(member);
  if (!ready.ok()) return Broken(member, ready.status().message());
  last_joined_ = member;
  for (UnitId id : *ready) OnReady(id, now);
  return Status::Ok();
}

void Coordinator::OnReady(UnitId id, double now) {
  stall_watch_.Remove(id);
  Negotiator::Unit& unit = negotiator_.Get(id);
  if (unit.variants.size() > 1) {
    Fail(id, StatusCode::kMismatch, MismatchText(unit));
    return;
  }
  if (std::string objection = JoinedObjection(id); !objection.empty()) {
    Fail(id, StatusCode::kJoined, std::move(objection));
    return;
  }
  const SharedSignature& signature = unit.variants[0];
  std::vector<uint32_t> absent = negotiator_.Absent(id);
  unit.chosen.reset();  // of a unit that had this place before
  if (signature->encoding.IsAdaptive()) unit.chosen = Choose(unit, absent.empty(), now);
  if (profile_) {
    profile_->OnReady(names_.Text(unit.key.name),
                      {signature, unit.chosen, unit.priority, BytesOf(unit)}, now);
  }
  scheduler_.Push({id, signature, std::move(absent), unit.priority,
                   EncodedSizeBound(names_.Text(unit.key.name), *signature), BytesOf(unit),
                   unit.chosen});
}

// Estimates the bytes that executing the unit transfers. For sizes that are not negotiated, those
// of this rank are used for all members.
int64_t Coordinator::BytesOf(const Negotiator::Unit& unit) const {
  const Signature& signature = *unit.variants[0];
  if (!HasFreeFirstDimension(signature.kind)) return signature.TotalBytes();
  const bool gathers = signature.kind == OpKind::kAllgather || signature.kind == OpKind::kGather;
  const auto members = static_cast<int64_t>(gathers ? options_.ranks.size() : 1);
  const int64_t most = kMaxRequestDataBytes / members;
  return std::max(signature.TotalBytes(), std::clamp<int64_t>(unit.own_bytes, 0, most) * members);
}

// Why the unit can't be executed without the joined ranks; empty if it can.
std::string Coordinator::JoinedObjection(UnitId id) const {
  std::vector<int> ranks;
  for (uint32_t member : negotiator_.Absent(id)) ranks.push_back(options_.ranks[member]);
  if (ranks.empty()) return {};
  const Negotiator::Unit& unit = negotiator_.Get(id);
  const Signature& signature = *unit.variants[0];
  bool possible = false;
  switch (signature.kind) {
    case OpKind::kAllreduce:
    case OpKind::kBarrier:
      possible = options_.goes_on_without_joined;
      break;
    case OpKind::kBroadcast:
    case OpKind::kReduce:
      possible = options_.goes_on_without_joined &&
                 !std::binary_search(ranks.begin(), ranks.end(), signature.root);
      break;
    default:
      break;
  }
  if (possible) return {};
  return std::string(Name(signature.kind)) + " \"" + DisplayNameOf(unit) +
         "\" can't be executed: it needs " + RankList(ranks) +
         ", which called join() and do not participate until all ranks have called it";
}

void Coordinator::Fail(UnitId id, StatusCode code, std::string message) {
  const Negotiator::Unit& unit = negotiator_.Get(id);
  PlanEntry entry;
  entry.type = PlanEntry::Type::kFail;
  entry.failure_code = static_cast<int>(code);
  entry.failure_message = std::move(message);
  Request& request = entry.items.emplace_back().request.emplace();
  request.name = std::string(names_.Text(unit.key.name));
  request.index = unit.key.index;
  request.signature.kind = unit.variants[0]->kind;
  failures_.push_back(std::move(entry));
  Forget(id);
}

std::string Coordinator::MismatchText(const Negotiator::Unit& unit) const {
  std::vector<Statement> statements;
  for (const SharedSignature& variant : unit.variants) statements.push_back({variant.get(), {}});
  for (uint32_t member = 0; member < unit.variant_of.size(); ++member) {
    const uint32_t variant = unit.variant_of[member];
    if (variant == Negotiator::kSilent) continue;
    statements[variant].ranks.push_back(options_.ranks[member]);
  }
  return DescribeMismatch(DisplayNameOf(unit), options_.process_set_id, statements);
}

std::string Coordinator::DisplayNameOf(const Negotiator::Unit& unit) const {
  return DisplayName(names_.Text(unit.key.name), unit.variants[0]->kind, unit.key.index);
}

void Coordinator::Forget(UnitId id) {
  names_.Release(negotiator_.Get(id).key.name);
  negotiator_.Forget(id);
}

std::vector<PlanEntry> Coordinator::TakePlan(double now) {
  std::vector<PlanEntry> plan;
  for (PlanEntry& failure : failures_) {
    failure.sequence = next_sequence_++;
    plan.push_back(std::move(failure));
  }
  failures_.clear();
  for (;;) {
    const std::vector<Bucket> buckets = scheduler_.Take();
    if (buckets.empty()) break;
    for (const Bucket& bucket : buckets) {
      plan.push_back(Publish(bucket));
      CountStep(plan.back(), now);
    }
  }
  // Only after everything that was submitted before the last rank joined has been scheduled.
  if (negotiator_.AllJoined() && scheduler_.empty()) {
    PlanEntry& entry = plan.emplace_back();
    entry.type = PlanEntry::Type::kAllJoined;
    entry.sequence = next_sequence_++;
    entry.last_joined = options_.ranks[last_joined_];
    negotiator_.Reactivate();
    ++epoch_;
  }
  return plan;
}

PlanEntry Coordinator::Publish(const Bucket& bucket) {
  PlanEntry entry;
  entry.sequence = next_sequence_++;
  entry.absent = negotiator_.Absent(bucket.parts[0].unit);
  if (!entry.absent.empty()) {
    const size_t spared = options_.average_over_participants ? entry.absent.size() : 0;
    entry.divisor = static_cast<uint32_t>(options_.ranks.size() - spared);
  }
  UnitId previous = UINT32_MAX;
  for (const Part& part : bucket.parts) {
    PlanItem& item = entry.items.emplace_back();
    item.whole = part.whole;
    item.tensor = part.tensor;
    item.begin = part.begin;
    item.count = part.count;
    const Negotiator::Unit& unit = negotiator_.Get(part.unit);
    if (unit.chosen) entry.encoding = unit.chosen;
    if (part.unit != previous) Refer(unit, entry, item);
    previous = part.unit;
    if (part.is_last) Forget(part.unit);
  }
  SortForTheWire(entry.items);
  scheduler_.Published(entry.sequence, bucket.bytes);
  return entry;
}

// Refers to the unit by its slot; otherwise sends it in full, with a newly assigned slot if one is
// available.
void Coordinator::Refer(const Negotiator::Unit& unit, PlanEntry& entry, PlanItem& item) {
  const SharedSignature& signature = unit.variants[0];
  const NameId name = unit.key.name;
  std::optional<uint32_t> slot = slots_.Find(name, *signature);
  if (slot) {
    const SharedSignature& cached = slots_.Get(*slot).signature;
    if (cached == signature || *cached == *signature) {
      slots_.Touch(*slot, entry.sequence);
      item.slot = slot;
      item.index = unit.key.index;
      return;
    }
    slots_.Retire(*slot, entry.sequence);
    entry.retired_slots.push_back(*slot);
  }
  if (IsCached(signature->kind)) {
    item.slot = slots_.Assign({name, signature}, entry.sequence, entry.retired_slots, names_);
  }
  Request& request = item.request.emplace();
  request.name = std::string(names_.Text(name));
  request.index = unit.key.index;
  request.priority = unit.priority;
  request.signature = *signature;
}

void Coordinator::OnExecuted(uint64_t sequence) { scheduler_.Executed(sequence); }

bool Coordinator::HasWork() const {
  return !failures_.empty() || scheduler_.CanTake() ||
         (negotiator_.AllJoined() && scheduler_.empty());
}

std::vector<StallReport> Coordinator::TakeStallReports(double now) {
  std::vector<StallReport> reports;
  for (const StallWatch::Overdue& overdue : stall_watch_.TakeOverdue(now)) {
    reports.push_back(DescribeWait(overdue.unit));
    reports.back().seconds_waiting = overdue.seconds_waiting;
  }
  for (const PostBox::Waiting& waiting : posts_.TakeOverdue(now)) {
    reports.push_back(DescribePosts(waiting));
  }
  return reports;
}

std::vector<StallReport> Coordinator::Waiting(size_t limit) const {
  std::vector<StallReport> reports;
  for (const UnitId id : negotiator_.Waiting(limit)) reports.push_back(DescribeWait(id));
  for (const PostBox::Waiting& waiting : posts_.All()) {
    if (reports.size() < limit) reports.push_back(DescribePosts(waiting));
  }
  return reports;
}

StallReport Coordinator::DescribePosts(const PostBox::Waiting& waiting) const {
  StallReport report;
  report.kind = waiting.signature->kind;
  report.display_name = DisplayName(names_.Text(waiting.key.name), report.kind, waiting.key.number);
  report.seconds_waiting = waiting.seconds;
  for (uint32_t member = 0; member < options_.ranks.size(); ++member) {
    auto& ranks = waiting.has_posted[member] ? report.ready_ranks : report.missing_ranks;
    ranks.push_back(options_.ranks[member]);
  }
  return report;
}

StallReport Coordinator::DescribeWait(UnitId id) const {
  const Negotiator::Unit& unit = negotiator_.Get(id);
  StallReport report;
  report.display_name = DisplayNameOf(unit);
  report.kind = unit.variants[0]->kind;
  for (uint32_t member = 0; member < unit.variant_of.size(); ++member) {
    if (unit.variant_of[member] != Negotiator::kSilent) {
      report.ready_ranks.push_back(options_.ranks[member]);
    } else if (!negotiator_.HasJoined(member)) {
      report.missing_ranks.push_back(options_.ranks[member]);
    }
  }
  return report;
}

}  // namespace horoscale
