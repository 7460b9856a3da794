// What a process set waits for: the reports about stalls, and the answer to SIGUSR2.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rank_list.h"
#include "core/mailbox.h"
#include "platform/log.h"
#include "runtime/process_set.h"

namespace horoscale {
namespace {

// Of one set, in the answer to SIGUSR2.
constexpr size_t kMaxDescribed = 20;
// An engine with nothing to do looks at its links twice a second.
constexpr double kAnswerSeconds = 0.9;

std::string Seconds(double seconds) { return std::to_string(static_cast<int64_t>(seconds)) + " s"; }

std::string Quoted(OpKind kind, const std::string& display_name) {
  return std::string(Name(kind)) + " \"" + display_name + "\"";
}

std::string Quoted(const Operation& operation) {
  return Quoted(operation.request.signature.kind, operation.request.DisplayName());
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
  if (operation.started_at != 0) return ", and its bytes don't move";
  if (message.is_send) return ": there is no recv for it";
  return ": no such message was sent";
}

uint64_t Milliseconds(double seconds) {
  return static_cast<uint64_t>(std::max(seconds, 0.0) * 1000);
}

}  // namespace

void ProcessSet::CheckStalls(double now) {
  if (failure_.ok()) CheckMissing(now);
  if (failure_.ok()) CheckProgress(now);
  if (failure_.ok()) CheckCoordinator(now);
  if (failure_.ok()) CheckBlocked(now);
  if (failure_.ok()) CheckMessages(now);
}

// On the coordinator: operations that some members have not called.
void ProcessSet::CheckMissing(double now) {
  if (!coordinator_) return;
  const double limit = config_.stall_shutdown_seconds;
  for (StallReport& report : coordinator_->TakeStallReports(now)) {
    const std::string text = DescribeStall(report, id());
    if (limit > 0 && report.seconds_waiting >= limit) {
      return Poison({StatusCode::kRankFailed, text, {report.missing_ranks, id(), ""}});
    }
    Log(LogLevel::kWarning, text);
    host_.OnStall(*this, {Quoted(report.kind, report.display_name),
                          Milliseconds(report.seconds_waiting), std::move(report.missing_ranks)});
  }
}

// Whether what has not moved `since` is due to be reported. Asks the other members a while before
// whether they run.
ProcessSet::Due ProcessSet::CheckStuck(double since, double now) {
  const double limit = config_.stall_shutdown_seconds;
  const double period = config_.stall_check ? config_.stall_warning_seconds : 0;
  const double stuck = now - since;
  const double told_or_moved = std::max(since, stuck_told_at_);
  if (probed_at_ < told_or_moved) {
    const bool soon = (limit > 0 && stuck >= limit / 2) || (period > 0 && stuck >= period / 2);
    if (!soon) return Due::kNo;
    probed_at_ = now;
    host_.Probe(*this);
  }
  if (now - probed_at_ < kAnswerSeconds) return Due::kNo;
  if (limit > 0 && stuck >= limit) return Due::kEnd;
  if (period <= 0 || now - told_or_moved < period) return Due::kNo;
  stuck_told_at_ = now;
  return Due::kWarning;
}

// The operation that runs here: all members have called it, but one of them may have been stopped.
void ProcessSet::CheckProgress(double now) {
  if (!collective_ && launched_.empty()) return;
  const Due due = CheckStuck(progressed_at_, now);
  if (due == Due::kNo) return;
  const std::vector<int> silent = host_.Silent(*this);
  const Action& action = launched_.empty() ? queue_.front() : launched_.front().action;
  const std::string text =
      Quoted(action.common.kind, action.display_name) + OnSet(id()) + " of " + RankList(ranks_) +
      " is being executed and has not advanced for " + Seconds(now - progressed_at_) +
      (silent.empty() ? "; all ranks of the set answer" : ": no answer from " + RankList(silent));
  if (due == Due::kWarning) return Log(LogLevel::kWarning, text);
  Poison({StatusCode::kRankFailed, text, {silent, id(), action.display_name}});
}

// On the other members: the coordinator, which would report who is missing, may be stopped itself.
void ProcessSet::CheckCoordinator(double now) {
  if (coordinator_ || collective_ || !launched_.empty()) return;
  const Operation* oldest = nullptr;
  for (const auto& [token, operation] : pending_) {
    if (operation->planned_at != 0) continue;
    if (oldest == nullptr || operation->token < oldest->token) oldest = operation.get();
  }
  if (oldest == nullptr) return;
  const Due due = CheckStuck(oldest->enqueued_at, now);
  const std::vector<int> silent = host_.Silent(*this);
  const int coordinator = ranks_.front();
  if (due == Due::kNo || std::find(silent.begin(), silent.end(), coordinator) == silent.end()) {
    return;
  }
  const std::string text = Quoted(*oldest) + OnSet(id()) + " has waited for " +
                           Seconds(now - oldest->enqueued_at) + " to be planned by rank " +
                           std::to_string(coordinator) + ", which does not answer";
  if (due == Due::kWarning) return Log(LogLevel::kWarning, text);
  Poison({StatusCode::kRankFailed, text, {{coordinator}, id(), oldest->request.DisplayName()}});
}

// Calls in which threads of this rank are blocked: rank 0 finds out who waits for whom.
void ProcessSet::CheckBlocked(double now) {
  const double period = config_.stall_check ? config_.stall_warning_seconds : 0;
  if (period <= 0) return;
  for (const auto& [token, operation] : pending_) {
    if (operation->waiters.load() == 0 || operation->process_set_id != id()) {
      operation->blocked_since = 0;
    } else if (operation->blocked_since == 0) {
      operation->blocked_since = now;
      operation->blocked_told_at = now;
    } else if (now - operation->blocked_told_at >= period) {
      operation->blocked_told_at = now;
      host_.OnStall(*this, {Quoted(*operation), Milliseconds(now - operation->blocked_since), {}});
    }
  }
}

// Sends and receives that don't move: each concerns this rank and its peer alone. Of those with one
// peer and tag the oldest is told.
void ProcessSet::CheckMessages(double now) {
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
        name + OnSet(id()) + " has waited for " + Seconds(now - since) + Missing(*operation);
    std::vector<int> missed = MissedBy(*operation);
    if (is_over) {
      return Poison({StatusCode::kRankFailed, text, {std::move(missed), id(), name}});
    }
    Log(LogLevel::kWarning, text);
    if (missed.size() > 1) continue;  // one of them would do: rank 0 can't tell who waits for whom
    host_.OnStall(*this, {name, Milliseconds(now - since), std::move(missed)});
    if (operation->blocked_since == 0) continue;
    host_.OnStall(*this, {name, Milliseconds(now - operation->blocked_since), {}});
  }
}

// The ranks that could let a send or a receive go on.
std::vector<int> ProcessSet::MissedBy(const Operation& operation) const {
  if (operation.message->peer != kAnyPeer) return {operation.message->peer};
  std::vector<int> others = ranks_;
  if (others.size() > 1) std::erase(others, transport_.rank());
  return others;
}

void ProcessSet::DescribeMessages(double now, std::vector<std::string>& lines) const {
  size_t described = 0;
  for (const auto& [token, operation] : messages_.pending()) {
    if (described++ == kMaxDescribed) break;
    std::string line = operation->DisplayName() + OnSet(id()) + ", called " +
                       Seconds(now - operation->enqueued_at) + " ago";
    if (operation->waiters.load() > 0) line += ", blocks its caller";
    lines.push_back(line + Missing(*operation));
  }
  if (const size_t kept = messages_.num_kept(); kept > 0) {
    lines.push_back(std::to_string(kept) + " messages" + OnSet(id()) +
                    " have come for which there is no recv yet");
  }
}

std::vector<std::string> ProcessSet::DescribeState(double now) const {
  std::vector<std::string> lines;
  const std::string set = "process set " + std::to_string(id()) + " of " + RankList(ranks_);
  if (!failure_.ok()) return {set + " is lost: " + failure_.message()};
  std::string head = set + ": " + std::to_string(pending_.size()) +
                     " operations pending; last plan entry " +
                     std::to_string(member_.applied_sequence()) + ", executed " +
                     std::to_string(executed_sequence_);
  if (collective_) {
    const Action& action = queue_.front();
    head += "; executing entry " + std::to_string(action.sequence) + ", " +
            Quoted(action.common.kind, action.display_name) + " and " +
            std::to_string(action.pieces.size() - 1) + " more, since " +
            Seconds(now - started_at_) + ", advanced " + Seconds(now - progressed_at_) + " ago";
  }
  lines.push_back(std::move(head));
  DescribePending(now, lines);
  DescribeMessages(now, lines);
  return lines;
}

void ProcessSet::DescribePending(double now, std::vector<std::string>& lines) const {
  std::unordered_map<std::string, StallReport> waits;
  if (coordinator_) {
    for (StallReport& report : coordinator_->Waiting(config_.cache_capacity + kMaxDescribed)) {
      waits.emplace(report.display_name, std::move(report));
    }
  }
  std::vector<OperationPtr> oldest;
  for (const auto& [token, operation] : pending_) oldest.push_back(operation);
  std::sort(oldest.begin(), oldest.end(),
            [](const auto& a, const auto& b) { return a->token < b->token; });
  for (size_t i = 0; i < oldest.size() && i < kMaxDescribed; ++i) {
    const Operation& operation = *oldest[i];
    std::string line = Quoted(operation) + OnSet(id()) + ", called " +
                       Seconds(now - operation.enqueued_at) + " ago";
    if (operation.waiters.load() > 0) line += ", blocks its caller";
    if (const auto wait = waits.find(operation.request.DisplayName()); wait != waits.end()) {
      line += ", misses " + RankList(wait->second.missing_ranks);
      waits.erase(wait);
    } else if (operation.started_at != 0) {
      line += ", is being executed";
    } else if (operation.planned_at != 0) {
      line += ", is planned";
    } else if (!coordinator_) {
      line += ", is not planned yet: rank " + std::to_string(ranks_.front()) +
              " decides, and knows who is missing";
    }
    lines.push_back(std::move(line));
  }
  if (oldest.size() > kMaxDescribed) {
    lines.push_back("and " + std::to_string(oldest.size() - kMaxDescribed) + " more" + OnSet(id()));
  }
  size_t described = 0;
  for (const auto& [name, report] : waits) {
    if (described++ == kMaxDescribed) break;
    lines.push_back(Quoted(report.kind, name) + OnSet(id()) + " was called by " +
                    RankList(report.ready_ranks) + ", misses " + RankList(report.missing_ranks));
  }
}

}  // namespace horoscale
