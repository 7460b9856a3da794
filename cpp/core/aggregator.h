// Aggregator: combines the reports of a group of members into few messages to the coordinator.
// Pure.
//
// A group consists of the members on a host, or in a subtree of hosts. No unit can be ready before
// all of them have reported it, so reports can be held until all members have reported something,
// at no cost. A late member delays the others' reports by at most `patience`, so that the
// coordinator's stall reports know which members are missing. Equal reports are merged. The reports
// of each member stay in order and complete: to the coordinator it is as if they had arrived over
// separate links, slightly later.
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
  // Usually longer than the time between ranks that compute the same.
  static constexpr double kPatienceSeconds = 1e-3;

  // `members` are the indices of the group's members in the set, ascending.
  Aggregator(std::vector<uint32_t> members, double patience_seconds);

  // Takes the report of a member, or of the aggregator of a part of the group. kProtocol if it
  // contains other members.
  Status OnReport(const GroupReport& report, double now);

  // Returns the report to forward now; nothing while some members have not reported and none has
  // waited for long. Large reports are split: call it until it returns nothing.
  std::optional<GroupReport> TakeReport(double now);

  // When the patience ends; nothing if no reports are held.
  std::optional<double> Deadline() const;

 private:
  static constexpr size_t kNone = SIZE_MAX;

  Status CheckSpeakers(const JointReport& part) const;
  void Add(const JointReport& part);
  size_t IndexOf(uint32_t member) const;

  std::vector<uint32_t> members_;
  double patience_;
  GroupReport held_;
  std::vector<size_t> last_part_;  // by index in members_: the position of its last report in
                                   // held_; kNone
  size_t silent_;                  // members with nothing in held_
  double oldest_ = 0;              // when the first report in held_ arrived
  bool passing_on_ = false;        // until held_ is empty
};

}  // namespace horoscale
