#include "runtime/set_watch.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rank_list.h"
#include "core/mailbox.h"
#include "platform/log.h"

namespace horoscale {
namespace {

// Maximum number of operations per set in the answer to SIGUSR2.
constexpr size_t kMaxDescribed = 20;
// An idle engine polls its links twice a second.
constexpr double kAnswerSeconds = 0.9;

std::string Seconds(double seconds) { return std::to_string(static_cast<int64_t>(seconds)) + " s"; }

std::string Quoted(OpKind kind, const std::string& display_name) {
  return std::string(Name(kind)) + " \"" + display_name + "\"";
}

std::string Quoted(const Operation& operation) {
  return Quoted(operation.request.signature.kind, operation.DisplayName());
}

std::string OnSet(int process_set_id) {
  return " on process set " + std::to_string(process_set_id);
}

std::string DescribeStall(const StallReport& report, int process_set_id) {
  return Quoted(report.kind, report.display_name) + OnSet(process_set_id) + " has waited for " +
         Seconds(report.seconds_waiting) + " for " + RankList(report.missing_ranks) +
         "; ready: " + RankList(report.ready_ranks) +
         ". All ranks of the set must call it, in any order unless the calls block.";
}

// What a send or a receive waits for.
std::string Missing(const Operation& operation) {
  const Message& message = *operation.message;
  if (message.at_device) return " for the device";
  if (operation.started_at != 0) return ", and its transfer makes no progress";
  if (message.is_send) return ": no recv matches it, or its view was not released";
  return ": no matching message was sent";
}

uint64_t Milliseconds(double seconds) {
  return static_cast<uint64_t>(std::max(seconds, 0.0) * 1000);
}

}  // namespace

SetWatch::SetWatch(SetHost& host, const Config& config, const SetPlace& place,
                   const PendingOperations& pending, SetControl& control,
                   const SetExecution& execution, const SetPosts& posts,
                   const SetMessages& messages)
    : host_(host),
      config_(config),
      place_(place),
      pending_(pending),
      control_(control),
      execution_(execution),
      posts_(posts),
      messages_(messages) {}

std::optional<Status> SetWatch::Check(double now) {
  auto end = CheckMissing(now);
  if (!end) end = CheckProgress(now);
  if (!end) end = CheckSilent(now);
  if (end) return end;
  CheckBlocked(now);
  return CheckMessages(now);
}

// On the coordinator: operations that some members have not called.
std::optional<Status> SetWatch::CheckMissing(double now) {
  const double limit = config_.stall_shutdown_seconds;
  for (StallReport& report : control_.TakeStallReports(now)) {
    const std::string text = DescribeStall(report, place_.id());
    if (limit > 0 && report.seconds_waiting >= limit) {
      return Status(StatusCode::kRankFailed, text, {report.missing_ranks, place_.id(), ""});
    }
    Log(LogLevel::kWarning, text);
    host_.OnStall(place_, {Quoted(report.kind, report.display_name),
                           Milliseconds(report.seconds_waiting), std::move(report.missing_ranks)});
  }
  return std::nullopt;
}

// Whether an operation without progress `since` is due to be reported. Probes the other members
// some time before.
SetWatch::Due SetWatch::CheckStuck(double since, double now) {
  const double limit = config_.stall_shutdown_seconds;
  const double period = config_.stall_check ? config_.stall_warning_seconds : 0;
  const double stuck = now - since;
  const double told_or_moved = std::max(since, stuck_told_at_);
  if (probed_at_ < told_or_moved) {
    const bool soon = (limit > 0 && stuck >= limit / 2) || (period > 0 && stuck >= period / 2);
    if (!soon) return Due::kNo;
    probed_at_ = now;
    host_.Probe(place_);
  }
  if (now - probed_at_ < kAnswerSeconds) return Due::kNo;
  if (limit > 0 && stuck >= limit) return Due::kEnd;
  if (period <= 0 || now - told_or_moved < period) return Due::kNo;
  stuck_told_at_ = now;
  return Due::kWarning;
}

// The operation that runs here: all members have called it, but one of them may have been stopped.
std::optional<Status> SetWatch::CheckProgress(double now) {
  const Action* const action = execution_.AtWork();
  if (action == nullptr) return std::nullopt;
  const Due due = CheckStuck(execution_.progressed_at(), now);
  if (due == Due::kNo) return std::nullopt;
  const std::vector<int> silent = host_.Silent(place_);
  const std::string text = Quoted(action->common.kind, action->display_name) + OnSet(place_.id()) +
                           " of " + RankList(place_.ranks) +
                           " is being executed, but has not advanced for " +
                           Seconds(now - execution_.progressed_at()) +
                           (silent.empty() ? "; all ranks of the set respond"
                                           : ": no response from " + RankList(silent));
  if (due == Due::kEnd) {
    return Status(StatusCode::kRankFailed, text, {silent, place_.id(), action->display_name});
  }
  Log(LogLevel::kWarning, text);
  return std::nullopt;
}

// On the other members: the coordinator, which would report missing members, may be stopped itself,
// or a member that has posted to the coordinator but not to this one.
std::optional<Status> SetWatch::CheckSilent(double now) {
  if (control_.IsCoordinator() || execution_.AtWork() != nullptr) return std::nullopt;
  const Operation* oldest = nullptr;
  for (const auto& [token, operation] : pending_) {
    if (operation->planned_at != 0) continue;
    if (oldest == nullptr || operation->token < oldest->token) oldest = operation.get();
  }
  if (oldest == nullptr) return std::nullopt;
  const Due due = CheckStuck(oldest->enqueued_at, now);
  std::vector<int> silent = host_.Silent(place_);
  const bool is_posted = posts_.waiting() == oldest->token;
  if (!is_posted) std::erase_if(silent, [this](int rank) { return rank != place_.coordinator(); });
  if (due == Due::kNo || silent.empty()) return std::nullopt;
  const std::string text = Quoted(*oldest) + OnSet(place_.id()) + " has waited for " +
                           Seconds(now - oldest->enqueued_at) +
                           (is_posted ? " for " : " to be planned by ") + RankList(silent) +
                           ", which " + (silent.size() == 1 ? "does" : "do") + " not respond";
  if (due == Due::kEnd) {
    return Status(StatusCode::kRankFailed, text,
                  {std::move(silent), place_.id(), oldest->DisplayName()});
  }
  Log(LogLevel::kWarning, text);
  return std::nullopt;
}

// Reports calls in which threads of this rank are blocked to rank 0, which detects deadlocks.
void SetWatch::CheckBlocked(double now) {
  const double period = config_.stall_check ? config_.stall_warning_seconds : 0;
  if (period <= 0) return;
  for (const auto& [token, operation] : pending_) {
    if (operation->waiters.load() == 0 || operation->process_set_id != place_.id()) {
      operation->blocked_since = 0;
    } else if (operation->blocked_since == 0) {
      operation->blocked_since = now;
      operation->blocked_told_at = now;
    } else if (now - operation->blocked_told_at >= period) {
      operation->blocked_told_at = now;
      host_.OnStall(place_, {Quoted(*operation), Milliseconds(now - operation->blocked_since), {}});
    }
  }
}

// Reports sends and receives without progress, which concern only this rank and its peer. For each
// peer and tag, only the oldest is reported.
std::optional<Status> SetWatch::CheckMessages(double now) {
  const double limit = config_.stall_shutdown_seconds;
  const double period = config_.stall_check ? config_.stall_warning_seconds : 0;
  std::set<std::string> told;
  for (const auto& [token, operation] : messages_.pending()) {
    if (operation->waiters.load() == 0) {
      operation->blocked_since = 0;
    } else if (operation->blocked_since == 0) {
      operation->blocked_since = now;
    }
    const double since = std::max(operation->enqueued_at, operation->started_at);
    const bool is_over = limit > 0 && now - since >= limit;
    const bool is_due = period > 0 && now - std::max(since, operation->blocked_told_at) >= period;
    if (!is_over && !is_due) continue;
    operation->blocked_told_at = now;
    const std::string name = operation->DisplayName();
    if (!is_over && (told.size() == kMaxDescribed || !told.insert(name).second)) continue;
    const std::string text =
        name + OnSet(place_.id()) + " has waited for " + Seconds(now - since) + Missing(*operation);
    std::vector<int> missed = MissedBy(*operation);
    if (is_over) {
      return Status(StatusCode::kRankFailed, text, {std::move(missed), place_.id(), name});
    }
    Log(LogLevel::kWarning, text);
    if (missed.empty()) continue;
    if (missed.size() > 1) {  // any one of them would end the wait
      if (operation->blocked_since == 0) continue;
      host_.OnStall(place_,
                    {name, Milliseconds(now - operation->blocked_since), std::move(missed), true});
      continue;
    }
    host_.OnStall(place_, {name, Milliseconds(now - since), std::move(missed)});
    if (operation->blocked_since == 0) continue;
    host_.OnStall(place_, {name, Milliseconds(now - operation->blocked_since), {}});
  }
  return std::nullopt;
}

// The ranks that a send or receive waits for.
std::vector<int> SetWatch::MissedBy(const Operation& operation) const {
  if (operation.message->at_device) return {};
  if (operation.message->peer != kAnyPeer) return {operation.message->peer};
  std::vector<int> others = place_.ranks;
  if (others.size() > 1) std::erase(others, place_.rank);
  std::erase_if(others, [this](int rank) { return messages_.HasLeft(rank); });
  return others;
}

void SetWatch::DescribeMessages(double now, std::vector<std::string>& lines) const {
  size_t described = 0;
  for (const auto& [token, operation] : messages_.pending()) {
    if (described++ == kMaxDescribed) break;
    std::string line = operation->DisplayName() + OnSet(place_.id()) + ", called " +
                       Seconds(now - operation->enqueued_at) + " ago";
    if (operation->waiters.load() > 0) line += ", blocks its caller";
    lines.push_back(line + Missing(*operation));
  }
  if (const size_t kept = messages_.num_kept(); kept > 0) {
    lines.push_back(std::to_string(kept) + " messages" + OnSet(place_.id()) +
                    " have arrived that no recv matches yet");
  }
}

std::vector<std::string> SetWatch::Describe(double now) const {
  std::vector<std::string> lines;
  std::string head = "process set " + std::to_string(place_.id()) + " of " +
                     RankList(place_.ranks) + ": " + std::to_string(pending_.size()) +
                     " operations pending; last plan entry " +
                     std::to_string(control_.applied_sequence()) + ", executed " +
                     std::to_string(execution_.ended_sequence());
  if (const Action* const action = execution_.Running()) {
    head += "; executing entry " + std::to_string(action->sequence) + ", " +
            Quoted(action->common.kind, action->display_name) + " and " +
            std::to_string(action->pieces.size() - 1) + " more, for " +
            Seconds(now - execution_.started_at()) + ", last progress " +
            Seconds(now - execution_.progressed_at()) + " ago";
  }
  lines.push_back(std::move(head));
  DescribePending(now, lines);
  DescribeMessages(now, lines);
  return lines;
}

void SetWatch::DescribePending(double now, std::vector<std::string>& lines) const {
  std::unordered_map<std::string, StallReport> waits;
  for (StallReport& report : control_.Waiting(config_.cache_capacity + kMaxDescribed)) {
    waits.emplace(report.display_name, std::move(report));
  }
  std::vector<OperationPtr> oldest;
  for (const auto& [token, operation] : pending_) oldest.push_back(operation);
  std::sort(oldest.begin(), oldest.end(),
            [](const auto& a, const auto& b) { return a->token < b->token; });
  for (size_t i = 0; i < oldest.size() && i < kMaxDescribed; ++i) {
    const Operation& operation = *oldest[i];
    std::string line = Quoted(operation) + OnSet(place_.id()) + ", called " +
                       Seconds(now - operation.enqueued_at) + " ago";
    if (operation.waiters.load() > 0) line += ", blocks its caller";
    if (const auto wait = waits.find(operation.DisplayName()); wait != waits.end()) {
      line += ", waiting for " + RankList(wait->second.missing_ranks);
      waits.erase(wait);
    } else if (operation.started_at != 0) {
      line += ", is being executed";
    } else if (operation.planned_at != 0) {
      line += ", is planned";
    } else if (!control_.IsCoordinator()) {
      line += ", is not planned yet: rank " + std::to_string(place_.coordinator()) +
              " decides, and knows which ranks are missing";
    }
    lines.push_back(std::move(line));
  }
  if (oldest.size() > kMaxDescribed) {
    lines.push_back("and " + std::to_string(oldest.size() - kMaxDescribed) + " more" +
                    OnSet(place_.id()));
  }
  size_t described = 0;
  for (const auto& [name, report] : waits) {
    if (described++ == kMaxDescribed) break;
    lines.push_back(Quoted(report.kind, name) + OnSet(place_.id()) + " was called by " +
                    RankList(report.ready_ranks) + ", waiting for " +
                    RankList(report.missing_ranks));
  }
}

}  // namespace horoscale
