#include "core/post_routes.h"

#include <algorithm>

namespace horoscale {

PostRoutes::PostRoutes(uint32_t size, uint32_t self, std::span<const uint32_t> hosts)
    : self_(self) {
  const auto host_of = [&](uint32_t member) { return hosts.empty() ? 0 : hosts[member]; };
  std::vector<uint32_t> counts;
  for (uint32_t member = 0; member < size; ++member) {
    if (host_of(member) == counts.size()) {
      counts.push_back(0);
      if (!hosts.empty()) speakers_.push_back(member);
    }
    ++counts[host_of(member)];
    if (host_of(member) == host_of(self)) members_.push_back(member);
  }
  most_ = *std::max_element(counts.begin(), counts.end());
  for (const uint32_t count : counts) is_alone_.push_back(count == 1);
  speaker_ = members_.front();
  if (spans_hosts() && speaker_ != self) {
    targets_ = {speaker_};
  } else if (!spans_hosts()) {
    std::copy_if(members_.begin(), members_.end(), std::back_inserter(targets_),
                 [self](uint32_t member) { return member != self; });
  }
}

PostRoutes::Kind PostRoutes::KindFrom(uint32_t from) const {
  if (from == self_) return Kind::kNone;
  const bool is_near = std::binary_search(members_.begin(), members_.end(), from);
  if (!spans_hosts() || (is_speaker() && is_near)) return Kind::kMember;
  if (is_near && from == speaker_) return Kind::kResult;
  const bool speaks = std::binary_search(speakers_.begin(), speakers_.end(), from);
  return is_speaker() && speaks ? Kind::kHost : Kind::kNone;
}

bool PostRoutes::Counts(uint32_t from) const {
  if (KindFrom(from) == Kind::kMember) return true;
  if (self_ != 0 || KindFrom(from) != Kind::kHost) return false;
  const auto place = std::lower_bound(speakers_.begin(), speakers_.end(), from);
  return is_alone_[static_cast<size_t>(place - speakers_.begin())];
}

}  // namespace horoscale
