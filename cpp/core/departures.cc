#include "core/departures.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace horoscale {
namespace {

Status Failure(std::string message, std::vector<int> ranks) {
  return {StatusCode::kRankFailed, std::move(message), {std::move(ranks), -1, ""}};
}

Status Left(int rank) { return Failure("rank " + std::to_string(rank) + " left the job", {rank}); }

// The root cause that the rank knew of.
Status CauseOf(int rank, const Status& reason, const Goodbye* goodbye) {
  const std::string who = "rank " + std::to_string(rank);
  if (goodbye == nullptr) return Failure(who + " failed: " + reason.message(), {rank});
  if (goodbye->clean) return Left(rank);
  const bool victim = !goodbye->ranks.empty() && goodbye->ranks != std::vector<int>{rank};
  if (victim) return Failure(goodbye->message, goodbye->ranks);
  return Failure(who + " failed: " + goodbye->message, {rank});
}

ExecutedUpTo ExecutedBy(const Goodbye& goodbye, uint32_t process_set, uint32_t incarnation) {
  for (const ExecutedUpTo& entry : goodbye.executed) {
    if (entry.process_set == process_set && entry.incarnation == incarnation) return entry;
  }
  return {process_set, incarnation, 0, 0};
}

void SetCause(Goodbye& goodbye, const Status& cause) {
  goodbye.clean = false;
  goodbye.code = static_cast<int>(StatusCode::kRankFailed);
  goodbye.message = cause.message();
  goodbye.ranks = cause.detail().ranks;
}

}  // namespace

const Status& Departures::OnLost(int rank, const Status& reason) {
  const auto found = goodbyes_.find(rank);
  const Goodbye* goodbye = found == goodbyes_.end() ? nullptr : &found->second;
  return lost_.emplace(rank, CauseOf(rank, reason, goodbye)).first->second;
}

bool Departures::LeftCleanly(int rank) const {
  const auto found = goodbyes_.find(rank);
  return found != goodbyes_.end() && found->second.clean;
}

Departures::Verdict Departures::ForSet(int lost_rank, uint32_t process_set, uint32_t incarnation,
                                       std::span<const int> ranks) const {
  const Status& cause = lost_.at(lost_rank);
  const auto goodbye = goodbyes_.find(lost_rank);
  if (goodbye == goodbyes_.end()) return {.at_once = true, .executed = {}, .cause = cause};
  // A failure of a third rank concerns only the sets of that rank.
  const std::vector<int>& culprits = cause.detail().ranks;
  const bool concerned = std::any_of(culprits.begin(), culprits.end(), [&](int culprit) {
    return std::binary_search(ranks.begin(), ranks.end(), culprit);
  });
  return {.at_once = false,
          .executed = ExecutedBy(goodbye->second, process_set, incarnation),
          .cause = concerned ? cause : Left(lost_rank)};
}

Goodbye Departures::MakeGoodbye(int own_rank, const std::string& reason, const Status& harm) const {
  Goodbye goodbye;
  for (const auto& [rank, cause] : lost_) {
    if (LeftCleanly(rank)) continue;
    SetCause(goodbye, cause);
    return goodbye;
  }
  if (reason.empty()) return goodbye;
  // A rank may leave at any time; it is a cause only for operations that needed it.
  SetCause(goodbye, harm.ok() ? Failure(reason, {own_rank}) : harm);
  return goodbye;
}

}  // namespace horoscale
