// SetWatch: reports what a process set is waiting for, in stall reports and in answers to SIGUSR2.
//
// It only reads the state of the other parts of the set. Called by the engine's owner.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/config.h"
#include "runtime/pending_operations.h"
#include "runtime/set_control.h"
#include "runtime/set_execution.h"
#include "runtime/set_host.h"
#include "runtime/set_messages.h"
#include "runtime/set_place.h"
#include "runtime/set_posts.h"

namespace horoscale {

class SetWatch {
 public:
  SetWatch(SetHost& host, const Config& config, const SetPlace& place,
           const PendingOperations& pending, SetControl& control, const SetExecution& execution,
           const SetPosts& posts, const SetMessages& messages);

  // Reports missing members (on the coordinator) and operations that do not advance. A returned
  // status must fail the set, because the user's time limit has passed.
  std::optional<Status> Check(double now);
  // The same for messages only.
  std::optional<Status> CheckMessages(double now);
  // Describes what this rank is waiting for, in lines, for the user.
  std::vector<std::string> Describe(double now) const;
  void DescribeMessages(double now, std::vector<std::string>& lines) const;

 private:
  enum class Due { kNo, kWarning, kEnd };

  std::optional<Status> CheckMissing(double now);
  Due CheckStuck(double since, double now);
  std::optional<Status> CheckProgress(double now);
  std::optional<Status> CheckSilent(double now);
  void CheckBlocked(double now);
  std::vector<int> MissedBy(const Operation& operation) const;
  void DescribePending(double now, std::vector<std::string>& lines) const;

  SetHost& host_;
  const Config& config_;
  const SetPlace& place_;
  const PendingOperations& pending_;
  SetControl& control_;
  const SetExecution& execution_;
  const SetPosts& posts_;
  const SetMessages& messages_;
  double stuck_told_at_ = 0;
  double probed_at_ = 0;
};

}  // namespace horoscale
