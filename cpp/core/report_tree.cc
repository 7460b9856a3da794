#include "core/report_tree.h"

#include <algorithm>

namespace horoscale {

ReportTree::ReportTree(uint32_t size, std::span<const uint32_t> hosts, uint32_t fan_out)
    : parents_(size), children_(size) {
  std::vector<uint32_t> leaders;
  for (uint32_t member = 0; member < size; ++member) {
    const uint32_t host = hosts.empty() ? 0 : hosts[member];
    if (host == leaders.size()) leaders.push_back(member);
  }
  ConnectHosts(leaders, fan_out);
  for (uint32_t member = 0; member < size; ++member) {
    const uint32_t leader = leaders[hosts.empty() ? 0 : hosts[member]];
    if (leader != member) Connect(leader, member);
  }
}

void ReportTree::Connect(uint32_t parent, uint32_t child) {
  parents_[child] = parent;
  children_[parent].push_back(child);
}

// The first of the leaders is the root of the others.
void ReportTree::ConnectHosts(std::span<const uint32_t> leaders, uint32_t fan_out) {
  const std::span<const uint32_t> below = leaders.subspan(1);
  const size_t subtrees = std::min<size_t>(below.size(), fan_out);
  for (size_t i = 0; i < subtrees; ++i) {
    const size_t begin = below.size() * i / subtrees;
    const size_t end = below.size() * (i + 1) / subtrees;
    Connect(leaders[0], below[begin]);
    ConnectHosts(below.subspan(begin, end - begin), fan_out);
  }
}

bool ReportTree::GoesThrough(uint32_t member, uint32_t relay) const {
  if (member >= parents_.size()) return false;
  while (member > relay) member = parents_[member];
  return member == relay;
}

std::vector<uint32_t> ReportTree::Group(uint32_t member) const {
  std::vector<uint32_t> group{member};
  for (size_t i = 0; i < group.size(); ++i) {
    group.insert(group.end(), children_[group[i]].begin(), children_[group[i]].end());
  }
  std::sort(group.begin(), group.end());
  return group;
}

}  // namespace horoscale
