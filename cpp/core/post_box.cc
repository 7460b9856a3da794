#include "core/post_box.h"

#include <utility>

#include "core/codec.h"

namespace horoscale {

PostBox::Outcome PostBox::Add(uint32_t member, const Key& key, const Said& said, double now) {
  if (operations_.size() >= kMaxPendingUnits) return Outcome::kTooMany;
  auto place = operations_.find(key);
  if (place == operations_.end()) place = Begin(key, now);
  Operation& operation = place->second;
  if (operation.posted[member]) return Outcome::kTwice;
  for (const std::optional<Said>& other : operation.posted) {
    if (!other) continue;
    operation.agrees &= other->slot == said.slot && other->slot_since == said.slot_since;
    break;
  }
  operation.posted[member] = said;
  if (++operation.count < size_) return Outcome::kWaits;
  if (!operation.agrees) return Outcome::kDisagrees;
  spare_ = operations_.extract(place);
  return Outcome::kEnded;
}

std::map<PostBox::Key, PostBox::Operation>::iterator PostBox::Begin(const Key& key, double now) {
  if (spare_) spare_.key() = key;
  const auto place =
      spare_ ? operations_.insert(std::move(spare_)).position : operations_.try_emplace(key).first;
  Operation& operation = place->second;
  operation.posted.assign(size_, std::nullopt);
  operation.count = 0;
  operation.agrees = true;
  operation.clock = {now, now};
  return place;
}

PostBox::Posted PostBox::Take(const Key& key) {
  auto node = operations_.extract(key);
  return node ? Posted{std::move(node.mapped().posted), node.mapped().clock} : Posted{};
}

std::optional<double> PostBox::Since(const Key& key) const {
  const auto place = operations_.find(key);
  if (place == operations_.end()) return std::nullopt;
  return place->second.clock.since;
}

std::vector<PostBox::Key> PostBox::NotPostedBy(uint32_t member) const {
  std::vector<Key> keys;
  for (const auto& [key, operation] : operations_) {
    if (!operation.posted[member]) keys.push_back(key);
  }
  return keys;
}

std::optional<PostBox::Key> PostBox::FirstNotPostedBy(uint32_t member, NameId name) const {
  for (auto next = operations_.lower_bound({name, 0}); next != operations_.end(); ++next) {
    if (next->first.name != name) break;
    if (!next->second.posted[member]) return next->first;
  }
  return std::nullopt;
}

PostBox::Waiting PostBox::Describe(const Key& key, const Operation& operation, double now) {
  Waiting waiting{key, nullptr, {}, now - operation.clock.since};
  for (const std::optional<Said>& said : operation.posted) {
    waiting.has_posted.push_back(said.has_value());
    if (said) waiting.signature = said->signature;
  }
  return waiting;
}

std::vector<PostBox::Waiting> PostBox::TakeOverdue(double now) {
  std::vector<Waiting> overdue;
  if (period_ <= 0) return overdue;
  for (auto& [key, operation] : operations_) {
    if (now < operation.clock.told + period_) continue;
    operation.clock.told = now;
    overdue.push_back(Describe(key, operation, now));
  }
  return overdue;
}

std::vector<PostBox::Waiting> PostBox::All() const {
  std::vector<Waiting> all;
  for (const auto& [key, operation] : operations_) all.push_back(Describe(key, operation, 0));
  return all;
}

}  // namespace horoscale
