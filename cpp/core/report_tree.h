// ReportTree: the tree along which reports are sent to the coordinator, which is member 0, and plan
// entries back. Pure.
//
// The lowest member of each host reports for its host. The hosts form a tree: the first is the
// root, and the others are divided equally among at most `fan_out` subtrees, recursively. On one
// host, all members report directly to the coordinator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace horoscale {

class ReportTree {
 public:
  static constexpr uint32_t kFanOut = 16;

  // `hosts[m]` is the host of member m; hosts are numbered in the order of their lowest members.
  // Empty: all members are on one host.
  ReportTree(uint32_t size, std::span<const uint32_t> hosts, uint32_t fan_out = kFanOut);

  // The coordinator is its own parent. A parent is lower than its children.
  uint32_t parent(uint32_t member) const { return parents_[member]; }
  // Children on other hosts first, then those on the same host; each ascending.
  const std::vector<uint32_t>& children(uint32_t member) const { return children_[member]; }
  // Whether the member's reports pass through `relay`; each member relays its own.
  bool GoesThrough(uint32_t member, uint32_t relay) const;
  // The member and all members whose reports pass through it, ascending.
  std::vector<uint32_t> Group(uint32_t member) const;

 private:
  void Connect(uint32_t parent, uint32_t child);
  void ConnectHosts(std::span<const uint32_t> leaders, uint32_t fan_out);

  std::vector<uint32_t> parents_;
  std::vector<std::vector<uint32_t>> children_;
};

}  // namespace horoscale
