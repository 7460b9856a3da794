// The coordinator's handling of encodings: members report their errors, and the plan contains the
// encoding chosen for each adaptive operation.
#include <string>

#include "core/coordinator.h"

namespace horoscale {

Status Coordinator::OnErrors(Members members, const Report& report) {
  for (const EncodingError& error : report.errors) {
    const SlotTable::Content* content = slots_.Meaning(error.slot, report.applied_sequence);
    if (content == nullptr || content->name == kNoName) {
      return Broken(members[0], "it has errors of slot " + std::to_string(error.slot) +
                                    " of the cache, which stands for no name");
    }
    for (const uint32_t member : members) {
      chooser_.OnError(names_.Text(content->name), member, error.encoding, error.error / 1e4);
    }
  }
  return Status::Ok();
}

// Residuals are kept by name, and only where all members participate.
Encoding Coordinator::Choose(const Negotiator::Unit& unit, bool all_take_part, double now) {
  const Signature& signature = *unit.variants[0];
  const bool is_sum =
      signature.reduce_op == ReduceOp::kSum || signature.reduce_op == ReduceOp::kAverage;
  const bool has_lossy =
      signature.kind == OpKind::kAllreduce || signature.kind == OpKind::kReducescatter;
  const bool may_choose = options_.spans_hosts && has_lossy && unit.key.name != kNoName &&
                          all_take_part && is_sum && !signature.on_device;
  if (!may_choose) return {};
  return chooser_.Choose(names_.Text(unit.key.name), signature, unit.priority, now);
}

void Coordinator::OnBucket(const EncodingChooser::Bucket& bucket) {
  chooser_.OnBucket(bucket);
  if (profile_) profile_->OnBlocked(bucket.exposed_seconds);
}

std::optional<ProfiledStep> Coordinator::TakeProfile() {
  std::optional<ProfiledStep> step = profile_ ? profile_->Usual() : std::nullopt;
  profile_.reset();
  return step;
}

// Steps matter only for adaptive operations and for a tuner.
void Coordinator::CountStep(const PlanEntry& entry, double now) {
  if (!chooser_.IsUsed() && !options_.is_tuned) return;
  if (const auto seconds = step_clock_.OnEntry(entry, now)) chooser_.OnStep(*seconds);
}

}  // namespace horoscale
