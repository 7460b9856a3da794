#include "core/member.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "core/codec.h"
#include "core/fusion_planner.h"

namespace horoscale {
namespace {

// Size of the requests in one report; a single request may be larger.
constexpr size_t kReportBytes = 1024 * 1024;

}  // namespace

Member::Member(int process_set_id, uint32_t self, uint32_t size, size_t cache_capacity)
    : process_set_id_(process_set_id),
      self_(self),
      size_(size),
      cache_(std::min<size_t>(cache_capacity, kMaxSlots / 2)) {}

Status Member::Submit(const Request& request, Token token) {
  if (request.signature.kind == OpKind::kJoin) {
    if (join_token_ != kNoToken) {
      return Status(StatusCode::kDuplicateName, "this rank has already called join()");
    }
    join_token_ = token;
    return Status::Ok();
  }
  if (join_token_ != kNoToken) {
    return Status::InvalidArgument(
        "this rank has called join() and does not participate until all ranks have called it");
  }
  HS_RETURN_IF_ERROR(CheckLimits(request));
  if (num_pending_ >= kMaxPendingUnits) {
    return Status::InvalidArgument("more than " + std::to_string(kMaxPendingUnits) +
                                   " operations are pending on process set " +
                                   std::to_string(process_set_id_));
  }
  NameId name = kNoName;
  uint64_t index = 0;
  if (request.name.empty()) {
    index = ++last_index_;
  } else {
    name = names_.Acquire(request.name);
    if (FindUnit(name, 0) != kNoUnit) {
      names_.Release(name);
      return Status(StatusCode::kDuplicateName,
                    "an operation named \"" + request.name + "\" is pending on process set " +
                        std::to_string(process_set_id_) + "; wait for it or use another name",
                    {.ranks = {}, .process_set_id = process_set_id_, .tensor = request.name});
    }
  }
  unreported_.push_back(AddUnit(request, index, name, token));
  return Status::Ok();
}

Member::UnitRef Member::AddUnit(const Request& request, uint64_t index, NameId name, Token token) {
  UnitRef ref = static_cast<UnitRef>(units_.size());
  if (free_.empty()) {
    units_.emplace_back();
  } else {
    ref = free_.back();
    free_.pop_back();
  }
  if (name == kNoName) {
    unit_of_index_.emplace(index, ref);
  } else {
    if (name >= unit_of_name_.size()) unit_of_name_.resize(name + 1, kNoUnit);
    unit_of_name_[name] = ref;
  }
  PendingUnit& unit = units_[ref];
  unit.request = request;
  unit.request.index = index;
  unit.tensors_left = static_cast<uint32_t>(request.signature.tensors.size());
  unit.name = name;
  unit.token = token;
  unit.order = next_order_++;
  ++num_pending_;
  return ref;
}

void Member::RemoveUnit(UnitRef ref) {
  PendingUnit& unit = units_[ref];
  if (unit.name == kNoName) {
    unit_of_index_.erase(unit.request.index);
  } else {
    unit_of_name_[unit.name] = kNoUnit;
    names_.Release(unit.name);
  }
  if (ref == posted_) posted_ = kNoUnit;
  // The next request in this position reuses its memory.
  Request request = std::move(unit.request);
  unit = PendingUnit{};
  unit.request = std::move(request);
  free_.push_back(ref);
  --num_pending_;
}

Member::UnitRef Member::FindUnit(NameId name, uint64_t index) const {
  if (name != kNoName) return name < unit_of_name_.size() ? unit_of_name_[name] : kNoUnit;
  auto found = unit_of_index_.find(index);
  return found == unit_of_index_.end() ? kNoUnit : found->second;
}

std::optional<Report> Member::TakeReport() {
  if (unreported_.empty() && !MayJoin()) return std::nullopt;
  return BuildReport();
}

// Posted units must end first, because nothing may be pending when all ranks have joined.
bool Member::MayJoin() const {
  return join_token_ != kNoToken && !join_reported_ && posted_ == kNoUnit;
}

Report Member::BuildReport() {
  Report report;
  report.applied_sequence = applied_sequence_;
  struct Hit {
    uint32_t slot;
    int priority;
    int64_t own_bytes;
  };
  std::vector<Hit> hits;
  std::vector<Hit> unnamed_hits;
  bool priorities_matter = false;
  bool bytes_matter = false;
  size_t bytes = 0;
  for (; !unreported_.empty() && bytes < kReportBytes; unreported_.pop_front()) {
    PendingUnit& unit = units_[unreported_.front()];
    unit.reported = true;
    const std::optional<uint32_t> slot = cache_.Find(unit.name, unit.request.signature);
    if (!slot) {
      bytes += EncodedSizeBound(unit.request.name, unit.request.signature);
      report.requests.push_back(unit.request);
      continue;
    }
    unit.hit_slot = *slot;
    const Hit hit{*slot, unit.request.priority, unit.request.own_bytes};
    priorities_matter |= hit.priority != 0;
    bytes_matter |= hit.own_bytes != 0;
    if (unit.name == kNoName) {
      report.unnamed_hits.push_back({*slot, unit.request.index});
      unnamed_hits.push_back(hit);
    } else {
      hits.push_back(hit);
    }
  }
  std::sort(hits.begin(), hits.end(), [](const Hit& a, const Hit& b) { return a.slot < b.slot; });
  report.hits.reserve(hits.size());
  for (const Hit& hit : hits) report.hits.push_back(hit.slot);
  if (self_ == 0 && (priorities_matter || bytes_matter)) {
    hits.insert(hits.end(), unnamed_hits.begin(), unnamed_hits.end());
    for (const Hit& hit : hits) {
      if (priorities_matter) report.hit_priorities.push_back(hit.priority);
      if (bytes_matter) report.hit_bytes.push_back(hit.own_bytes);
    }
  }
  report.errors = errors_.Take();
  report.join = MayJoin() && unreported_.empty();
  join_reported_ = join_reported_ || report.join;
  return report;
}

void Member::NoteError(const std::string& name, const Encoding& encoding, double error) {
  const NameId id = names_.Find(name);
  if (id == kNoName) return;
  if (const auto slot = cache_.SlotOf(id)) errors_.Note(*slot, encoding, error);
}

std::optional<Member::Lone> Member::FindLone() const {
  if (num_pending_ != 1 || unreported_.size() != 1 || join_token_ != kNoToken) return std::nullopt;
  const PendingUnit& unit = units_[unreported_.front()];
  return Lone{unit.token, &unit.request};
}

std::optional<Post> Member::TakePost() {
  PendingUnit& unit = units_[unreported_.front()];
  const std::optional<uint32_t> slot = cache_.Find(unit.name, unit.request.signature);
  if (!slot) return std::nullopt;
  unit.reported = true;
  unit.hit_slot = *slot;
  posted_ = unreported_.front();
  unreported_.pop_front();
  const ResponseCache::Entry& entry = *cache_.Get(*slot);
  const uint64_t occurrence = unit.name == kNoName ? 0 : entry.uses;
  return Post{applied_sequence_, epoch_, unit.request.index, *slot, entry.since, occurrence};
}

Token Member::EndPosted() {
  assert(posted_ != kNoUnit);
  const PendingUnit& unit = units_[posted_];
  const Token token = unit.token;
  if (unit.name != kNoName) {
    if (const auto slot = cache_.SlotOf(unit.name)) cache_.CountUse(*slot);
  }
  RemoveUnit(posted_);
  return token;
}

// The slot that a named post refers to; null if it is retired here, or not assigned yet.
const ResponseCache::Entry* Member::FindSlot(const Post& post) const {
  const ResponseCache::Entry* const entry = cache_.Get(post.slot);
  const bool is_it = entry != nullptr && entry->name != kNoName && entry->since == post.slot_since;
  return is_it ? entry : nullptr;
}

// The pending unit with the key of a post.
Member::UnitRef Member::FindUnit(const Post& post) const {
  if (post.index != 0) return FindUnit(kNoName, post.index);
  const ResponseCache::Entry* const entry = FindSlot(post);
  if (entry == nullptr || entry->uses != post.occurrence) return kNoUnit;
  return FindUnit(entry->name, 0);
}

bool Member::HasPassed(const Post& post) const {
  if (post.epoch != epoch_) return post.epoch < epoch_;
  if (join_token_ != kNoToken) return true;
  if (post.index != 0) return post.index <= last_index_;
  const ResponseCache::Entry* const entry = FindSlot(post);
  if (entry == nullptr) return post.slot_since <= applied_sequence_;
  return post.occurrence < entry->uses || FindUnit(post) != kNoUnit;
}

bool Member::MayPost(const Post& post) const {
  if (!HasPassed(post)) return true;
  if (post.epoch < epoch_) return false;
  const UnitRef ref = FindUnit(post);
  return ref != kNoUnit && (ref == posted_ || !units_[ref].reported);
}

Status Member::Broken(std::string what) const {
  return Status(StatusCode::kProtocol,
                "invalid plan entry " + std::to_string(applied_sequence_ + 1) + " of process set " +
                    std::to_string(process_set_id_) + ": " + what,
                {.ranks = {}, .process_set_id = process_set_id_, .tensor = {}});
}

Result<Action> Member::Apply(const PlanEntry& entry) {
  HS_RETURN_IF_ERROR(CheckHeader(entry));
  HS_RETURN_IF_ERROR(Retire(entry.retired_slots));
  Action action;
  action.sequence = entry.sequence;
  action.absent = entry.absent;
  action.divisor = entry.absent.empty() ? size_ : entry.divisor;
  Status status;
  switch (entry.type) {
    case PlanEntry::Type::kExecute:
      status = Execute(entry, action);
      break;
    case PlanEntry::Type::kFail:
      status = Fail(entry, action);
      break;
    case PlanEntry::Type::kAllJoined:
      status = EndJoin(entry, action);
      break;
  }
  if (!status.ok()) return status;
  applied_sequence_ = entry.sequence;
  return action;
}

Status Member::CheckHeader(const PlanEntry& entry) const {
  if (entry.sequence != applied_sequence_ + 1) {
    return Broken("it has the wrong number " + std::to_string(entry.sequence));
  }
  if (!entry.absent.empty() && entry.absent.back() >= size_) {
    return Broken("it lists a member that does not exist as absent");
  }
  if (!entry.absent.empty() && (entry.divisor < 1 || entry.divisor > size_)) {
    return Broken("it averages over " + std::to_string(entry.divisor) + " members");
  }
  return Status::Ok();
}

Status Member::Retire(const std::vector<uint32_t>& slots) {
  for (uint32_t slot : slots) {
    Result<NameId> name = cache_.Retire(slot);
    if (!name.ok()) return Broken(name.status().message());
    names_.Release(*name);
    errors_.Forget(slot);
  }
  return Status::Ok();
}

Result<Member::Target> Member::ResolveRequest(const PlanItem& item) {
  const Request& request = *item.request;
  const NameId name = request.name.empty() ? kNoName : names_.Acquire(request.name);
  const UnitRef unit = FindUnit(name, request.index);
  Status status;
  if (item.slot) {
    status = cache_.Assign(*item.slot, name, request.signature, applied_sequence_ + 1);
    if (status.ok()) {
      names_.AddReference(name);
      cache_.CountUse(*item.slot);
    }
  }
  names_.Release(name);
  if (!status.ok()) return Broken(status.message());
  return Target{unit, &request.signature, request.DisplayName()};
}

Result<Member::Target> Member::ResolveSlot(const PlanItem& item) {
  const ResponseCache::Entry* entry = cache_.Get(*item.slot);
  if (entry == nullptr) return Broken("slot " + std::to_string(*item.slot) + " is empty");
  if ((entry->name == kNoName) != (item.index != 0)) {
    return Broken("slot " + std::to_string(*item.slot) + " is used for another kind of key");
  }
  cache_.CountUse(*item.slot);
  Target target{FindUnit(entry->name, item.index), &entry->signature, {}};
  if (target.unit == kNoUnit) {
    target.display_name = DisplayName(names_.Text(entry->name), entry->signature.kind, item.index);
  }
  return target;
}

Result<Member::Target> Member::Resolve(const PlanItem& item, bool absent) {
  Result<Target> target = item.request ? ResolveRequest(item) : ResolveSlot(item);
  if (!target.ok()) return target;
  if ((target->unit == kNoUnit) != absent) {
    return Broken(absent ? "it says that this rank has called join()"
                         : "it executes an operation that this rank has not submitted: " +
                               target->display_name);
  }
  if (absent) return target;
  const PendingUnit& unit = units_[target->unit];
  const bool agrees = (item.slot && !item.request && *item.slot == unit.hit_slot) ||
                      unit.request.signature == *target->signature;
  if (!unit.reported || !agrees) {
    return Broken("it executes \"" + unit.request.DisplayName() +
                  "\" with other arguments than submitted");
  }
  return target;
}

Status Member::Execute(const PlanEntry& entry, Action& action) {
  const bool absent = std::binary_search(entry.absent.begin(), entry.absent.end(), self_);
  Target target;
  Terms chosen;  // those of an adaptive item, with the encoding that was chosen
  for (const PlanItem& item : entry.items) {
    if (item.slot || item.request) {
      Result<Target> resolved = Resolve(item, absent);
      if (!resolved.ok()) return resolved.status();
      target = resolved.TakeValue();
    } else if (target.signature == nullptr) {
      return Broken("its first item does not name a unit");
    }
    const Terms* terms = target.signature;
    if (terms->encoding.IsAdaptive()) {
      if (!entry.encoding) return Broken("it chooses no encoding for an adaptive operation");
      chosen = *terms;
      chosen.encoding = *entry.encoding;
      terms = &chosen;
    }
    if (&item == &entry.items[0]) {
      action.common = *terms;
      if (!target.signature->tensors.empty()) action.dtype = target.signature->tensors[0].dtype;
      action.display_name =
          target.unit == kNoUnit ? target.display_name : units_[target.unit].request.DisplayName();
      if (!item.whole && item.tensor < target.signature->tensors.size()) {
        action.dtype = target.signature->tensors[item.tensor].dtype;
      }
    } else if (action.common != *terms) {
      return Broken("it fuses incompatible operations");
    }
    HS_RETURN_IF_ERROR(AddPieces(item, target, action));
  }
  return Status::Ok();
}

Status Member::AddPieces(const PlanItem& item, const Target& target, Action& action) {
  const Token token = target.unit == kNoUnit ? kNoToken : units_[target.unit].token;
  const std::vector<TensorSpec>& tensors = target.signature->tensors;
  if (!item.whole) {
    return AddPiece(target, {token, item.tensor, item.begin, item.count}, action);
  }
  if (tensors.empty()) {
    action.pieces.push_back({token, 0, 0, 0});
    if (token == kNoToken) return Status::Ok();
    action.finished.push_back(token);
    RemoveUnit(target.unit);
  }
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    HS_RETURN_IF_ERROR(AddPiece(target, {token, i, 0, tensors[i].NumElements()}, action));
  }
  return Status::Ok();
}

Status Member::AddPiece(const Target& target, const Piece& piece, Action& action) {
  const std::vector<TensorSpec>& tensors = target.signature->tensors;
  if (piece.tensor >= tensors.size() || tensors[piece.tensor].dtype != action.dtype) {
    return Broken("a part has the wrong type or no tensor");
  }
  const int64_t elements = tensors[piece.tensor].NumElements();
  if (piece.begin > elements || piece.count > elements - piece.begin ||
      (piece.count == 0) != (elements == 0)) {
    return Broken("a part is out of its tensor's bounds");
  }
  action.pieces.push_back(piece);
  if (target.unit == kNoUnit) return Status::Ok();
  PendingUnit& unit = units_[target.unit];
  if (unit.token == kNoToken) return Broken("a unit is executed after its end");
  if (unit.done.empty()) unit.done.assign(tensors.size(), 0);
  // -1 marks an empty tensor whose part was executed.
  int64_t& done = unit.done[piece.tensor];
  if (done != piece.begin) return Broken("the parts of a tensor are not consecutive");
  done = elements == 0 ? -1 : done + piece.count;
  if (done == elements || elements == 0) --unit.tensors_left;
  if (unit.tensors_left == 0) {
    action.finished.push_back(unit.token);
    RemoveUnit(target.unit);
  }
  return Status::Ok();
}

Status Member::Fail(const PlanEntry& entry, Action& action) {
  action.type = Action::Type::kFail;
  const Request& request = *entry.items[0].request;
  action.common = request.signature;
  action.display_name = request.DisplayName();
  action.failure =
      Status(static_cast<StatusCode>(entry.failure_code), entry.failure_message,
             {.ranks = {}, .process_set_id = process_set_id_, .tensor = action.display_name});
  const NameId name = request.name.empty() ? kNoName : names_.Find(request.name);
  const UnitRef ref =
      name == kNoName && !request.name.empty() ? kNoUnit : FindUnit(name, request.index);
  if (const auto slot = cache_.SlotOf(name)) cache_.CountUse(*slot);
  if (ref != kNoUnit) {
    if (!units_[ref].reported) {
      return Broken("it fails an operation that this rank has not reported");
    }
    action.finished.push_back(units_[ref].token);
    RemoveUnit(ref);
  } else if (join_token_ == kNoToken) {
    return Broken("it fails an operation that this rank has not submitted: " + action.display_name);
  }
  return Status::Ok();
}

Status Member::EndJoin(const PlanEntry& entry, Action& action) {
  if (!join_reported_ || num_pending_ > 0) {
    return Broken("it says that all ranks have called join()");
  }
  action.type = Action::Type::kAllJoined;
  action.last_joined = entry.last_joined;
  action.finished.push_back(std::exchange(join_token_, kNoToken));
  join_reported_ = false;
  ++epoch_;
  last_index_ = 0;  // ranks that joined early made fewer unnamed calls
  return Status::Ok();
}

std::vector<Token> Member::Abandon() {
  std::vector<Token> tokens;
  for (const auto& [token, name] : Pending()) tokens.push_back(token);
  for (UnitRef ref = 0; ref < units_.size(); ++ref) {
    if (units_[ref].token != kNoToken) RemoveUnit(ref);
  }
  unreported_.clear();
  join_token_ = kNoToken;
  join_reported_ = false;
  return tokens;
}

bool Member::HasPending() const { return num_pending_ > 0 || join_token_ != kNoToken; }

std::vector<std::pair<Token, std::string>> Member::Pending() const {
  std::vector<const PendingUnit*> units;
  for (const PendingUnit& unit : units_) {
    if (unit.token != kNoToken) units.push_back(&unit);
  }
  std::sort(units.begin(), units.end(),
            [](const PendingUnit* a, const PendingUnit* b) { return a->order < b->order; });
  std::vector<std::pair<Token, std::string>> pending;
  for (const PendingUnit* unit : units) {
    pending.emplace_back(unit->token, unit->request.DisplayName());
  }
  if (join_token_ != kNoToken) pending.emplace_back(join_token_, "join");
  return pending;
}

}  // namespace horoscale
