// ReportTree: whose reports go through whom on their way to the coordinator, which is member 0, and
// the plan on its way back. Pure.
//
// The lowest member of each host speaks for its host. The hosts are a tree: the first is its root,
// the others are divided among at most `fan_out` subtrees in equal parts, and so on. On one host
// all members speak to the coordinator themselves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace horoscale {

class ReportTree {
 public:
  static constexpr uint32_t kFanOut = 16;

  // `hosts[m]`: the host of member m; hosts are numbered in the order of their lowest members.
  // Empty: all are on one host.
  ReportTree(uint32_t size, std::span<const uint32_t> hosts, uint32_t fan_out = kFanOut);

  // The coordinator's is itself. A parent is lower than its children.
  uint32_t parent(uint32_t member) const { return parents_[member]; }
  // Those on other hosts first, then those of the host; each ascending.
  const std::vector<uint32_t>& children(uint32_t member) const { return children_[member]; }
  // Whether `relay` passes on what the member says; each member passes on its own.
  bool GoesThrough(uint32_t member, uint32_t relay) const;
  // The member and all whose reports go through it, ascending.
  std::vector<uint32_t> Group(uint32_t member) const;

 private:
  void Connect(uint32_t parent, uint32_t child);
  void ConnectHosts(std::span<const uint32_t> leaders, uint32_t fan_out);

  std::vector<uint32_t> parents_;
  std::vector<std::vector<uint32_t>> children_;
};

}  // namespace horoscale
