// Combines the reports of a group of members into few messages, on their way to the coordinator.
// Pure.
//
// A group is the members of a host, or of a subtree of hosts. No unit can be ready before all of
// them have reported it, so that it costs nothing to hold what some have said until all have said
// something; who is late holds up the others' words for `patience` at most, so that the
// coordinator's stall reports know whom they wait for. Equal reports become one. Each member's
// reports keep their order, and nothing is lost or added: to the coordinator it is as if they had
// come on links of their own, a little later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "core/messages.h"

namespace horoscale {

class Aggregator {
 public:
  // Longer than ranks that compute the same are apart at the most, usually.
  static constexpr double kPatienceSeconds = 1e-3;

  // `members` are those of the group: indices into the set, ascending.
  Aggregator(std::vector<uint32_t> members, double patience_seconds);

  // What a member says, or the aggregator of a part of the group. kProtocol if it speaks for
  // others.
  Status OnReport(const GroupReport& report, double now);

  // What is to be passed on now; nothing while members of the group have said nothing and none has
  // waited for long. Large ones come in several: call it until it gives nothing.
  std::optional<GroupReport> TakeReport(double now);

  // When the patience ends, if nothing else comes; nothing while nothing is held.
  std::optional<double> Deadline() const;

 private:
  static constexpr size_t kNone = SIZE_MAX;

  Status CheckSpeakers(const JointReport& part) const;
  void Add(const JointReport& part);
  size_t IndexOf(uint32_t member) const;

  std::vector<uint32_t> members_;
  double patience_;
  GroupReport held_;
  std::vector<size_t> last_part_;  // by place in members_: where in held_ its last report is; kNone
  size_t silent_;                  // members with nothing in held_
  double oldest_ = 0;              // when the first of held_ came
  bool passing_on_ = false;        // until held_ is empty
};

}  // namespace horoscale
