#include "collectives/host_groups.h"

#include <algorithm>

namespace horoscale {

HostGroups::HostGroups(const Exchange& exchange, std::span<const uint32_t> participants)
    : places_(exchange.size()) {
  const std::span<const uint32_t> hosts = exchange.hosts();
  const auto host_of = [&](uint32_t member) { return hosts.empty() ? 0 : hosts[member]; };
  for (uint32_t member : participants) {
    if (members_.size() <= host_of(member)) members_.resize(host_of(member) + size_t{1});
    members_[host_of(member)].push_back(member);
  }
  std::erase_if(members_, [](const std::vector<uint32_t>& members) { return members.empty(); });
  for (uint32_t host = 0; host < count(); ++host) {
    for (uint32_t i = 0; i < members_[host].size(); ++i) places_[members_[host][i]] = {host, i};
  }
}

uint32_t HostGroups::fewest() const {
  size_t least = places_.size();
  for (const std::vector<uint32_t>& members : members_) least = std::min(least, members.size());
  return static_cast<uint32_t>(least);
}

uint32_t HostGroups::most() const {
  size_t most = 0;
  for (const std::vector<uint32_t>& members : members_) most = std::max(most, members.size());
  return static_cast<uint32_t>(most);
}

}  // namespace horoscale
