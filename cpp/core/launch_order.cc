#include "core/launch_order.h"

#include <algorithm>

#include "core/wire.h"

namespace horoscale {

std::vector<std::byte> Encode(const LaunchStamp& stamp) {
  WireWriter out;
  out.Varint(stamp.sequence);
  out.Varint(stamp.stamp);
  return out.Take();
}

Result<LaunchStamp> DecodeLaunchStamp(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  LaunchStamp stamp;
  stamp.sequence = in.Varint();
  stamp.stamp = in.Varint(kMaxLaunchStamp);
  if (in.left() != 0) in.Fail("trailing bytes");
  if (!in.ok()) return Status::Protocol(std::string("invalid launch stamp: ") + in.reason());
  return stamp;
}

uint64_t LaunchOrder::Propose(uint32_t incarnation, uint64_t sequence) {
  const uint64_t stamp = ++clock_;
  places_.insert({stamp, incarnation, sequence, false});
  stamps_[{incarnation, sequence}] = stamp;
  return stamp;
}

Status LaunchOrder::Agree(uint32_t incarnation, LaunchStamp decision) {
  const auto found = stamps_.find({incarnation, decision.sequence});
  if (found == stamps_.end() || decision.stamp < found->second) {
    return Status::Protocol("invalid launch stamp: it was not proposed");
  }
  clock_ = std::max(clock_, decision.stamp);
  if (places_.erase({found->second, incarnation, decision.sequence, false}) == 0) {
    stamps_.erase(found);  // it was removed meanwhile
    return Status::Ok();
  }
  places_.insert({decision.stamp, incarnation, decision.sequence, true});
  found->second = decision.stamp;
  return Status::Ok();
}

bool LaunchOrder::IsNext(uint32_t incarnation, uint64_t sequence) const {
  if (places_.empty()) return false;
  const Place& first = *places_.begin();
  return first.is_agreed && first.incarnation == incarnation && first.sequence == sequence;
}

std::vector<uint64_t> LaunchOrder::NextOf(uint32_t incarnation, uint64_t first) const {
  std::vector<uint64_t> next;
  for (const Place& place : places_) {
    if (!place.is_agreed || place.incarnation != incarnation || place.sequence < first) break;
    next.push_back(place.sequence);
  }
  return next;
}

void LaunchOrder::Remove(uint32_t incarnation, uint64_t sequence) {
  const auto found = stamps_.find({incarnation, sequence});
  if (found == stamps_.end()) return;
  const auto place = places_.find({found->second, incarnation, sequence, false});
  if (place == places_.end()) return;
  const bool is_agreed = place->is_agreed;
  places_.erase(place);
  if (is_agreed) stamps_.erase(found);  // otherwise its decision is pending
}

void LaunchOrder::RemoveSet(uint32_t incarnation) {
  const auto first = stamps_.lower_bound({incarnation, 0});
  const auto last = stamps_.upper_bound({incarnation, UINT64_MAX});
  for (auto it = first; it != last; ++it) {
    places_.erase({it->second, incarnation, it->first.second, false});
  }
  stamps_.erase(first, last);
}

Result<std::optional<LaunchStamp>> StampCollector::Add(uint32_t member, LaunchStamp proposal) {
  LaunchStamp& last = last_[member];
  if (proposal.sequence <= last.sequence || proposal.stamp <= last.stamp) {
    return Status::Protocol("invalid launch stamp: it is not larger than the previous one");
  }
  last = proposal;
  Open& open = open_[proposal.sequence];
  open.stamp = std::max(open.stamp, proposal.stamp);
  if (++open.proposals < last_.size()) return std::optional<LaunchStamp>();
  const LaunchStamp decision{proposal.sequence, open.stamp};
  open_.erase(proposal.sequence);
  return std::optional<LaunchStamp>(decision);
}

}  // namespace horoscale
