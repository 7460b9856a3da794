#include "core/post_box.h"

#include <utility>

#include "core/codec.h"

namespace horoscale {

PostBox::Outcome PostBox::Add(uint32_t member, uint64_t index, const Said& said, double now) {
  if (operations_.size() >= kMaxPendingUnits) return Outcome::kTooMany;
  const auto [place, is_new] = operations_.try_emplace(index);
  Operation& operation = place->second;
  if (is_new) {
    operation.posted.resize(size_);
    operation.since = now;
    operation.due = now + period_;
  }
  for (const std::optional<Said>& other : operation.posted) {
    if (!other) continue;
    operation.agrees &= other->slot == said.slot && other->slot_since == said.slot_since;
    break;
  }
  operation.posted[member] = said;
  if (++operation.count < size_) return Outcome::kWaits;
  if (!operation.agrees) return Outcome::kDisagrees;
  operations_.erase(place);
  return Outcome::kEnded;
}

std::vector<std::optional<PostBox::Said>> PostBox::Take(uint64_t index) {
  auto node = operations_.extract(index);
  return node ? std::move(node.mapped().posted) : std::vector<std::optional<Said>>{};
}

std::vector<uint64_t> PostBox::NotPostedBy(uint32_t member) const {
  std::vector<uint64_t> indices;
  for (const auto& [index, operation] : operations_) {
    if (!operation.posted[member]) indices.push_back(index);
  }
  return indices;
}

PostBox::Waiting PostBox::Describe(uint64_t index, const Operation& operation, double now) {
  Waiting waiting{index, nullptr, {}, now - operation.since};
  for (const std::optional<Said>& said : operation.posted) {
    waiting.has_posted.push_back(said.has_value());
    if (said) waiting.signature = said->signature;
  }
  return waiting;
}

std::vector<PostBox::Waiting> PostBox::TakeOverdue(double now) {
  std::vector<Waiting> overdue;
  if (period_ <= 0) return overdue;
  for (auto& [index, operation] : operations_) {
    if (now < operation.due) continue;
    operation.due = now + period_;
    overdue.push_back(Describe(index, operation, now));
  }
  return overdue;
}

std::vector<PostBox::Waiting> PostBox::All() const {
  std::vector<Waiting> all;
  for (const auto& [index, operation] : operations_) all.push_back(Describe(index, operation, 0));
  return all;
}

}  // namespace horoscale
