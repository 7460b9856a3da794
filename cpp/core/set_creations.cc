#include "core/set_creations.h"

#include <algorithm>

#include "base/process_set_ids.h"
#include "base/rank_list.h"

namespace horoscale {
namespace {

using Type = SetCreationFrame::Type;

bool Has(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// "the set of ranks 0 and 1, distinct"
std::string Describe(const NewSet& set) {
  return "the set of " + RankList(set.ranks) + (set.distinct ? ", distinct" : "");
}

}  // namespace

SetCreations::Key SetCreations::KeyOf(const NewSet& set) {
  Key key(set.ranks, set.tag);
  std::sort(key.first.begin(), key.first.end());
  return key;
}

void SetCreations::Send(int to_rank, SetCreationFrame frame) {
  if (to_rank == rank_) {
    (void)OnFrame(rank_, frame);  // own frames are valid
  } else {
    steps_.push_back({.kind = Step::Kind::kSend, .rank = to_rank, .frame = std::move(frame)});
  }
}

const Status* SetCreations::LossIn(const std::vector<int>& ranks) const {
  for (const auto& [rank, cause] : lost_) {
    if (Has(ranks, rank)) return &cause;
  }
  return nullptr;
}

Status SetCreations::OnFrame(int from_rank, const SetCreationFrame& frame) {
  switch (frame.type) {
    case Type::kAsk:
      return OnAsk(from_rank, frame);
    case Type::kMade:
      OnMade(from_rank, frame);
      break;
    case Type::kReady:
      OnReady(from_rank, frame.number);
      break;
    case Type::kBegin:
      OnBegin(from_rank, frame.number);
      break;
    case Type::kRefused: {
      const auto call = calls_.find(frame.call);
      if (call != calls_.end() && call->second.leader == from_rank) Fail(frame.call, frame.cause);
      break;
    }
    case Type::kWithdrawn:
      OnWithdrawn(from_rank, frame);
      break;
  }
  return Status::Ok();
}

// ------------------------------------------------------------------ the member

Result<uint64_t> SetCreations::Call(NewSet set) {
  const Key key = KeyOf(set);
  if (const auto pending = calls_by_key_.find(key); pending != calls_by_key_.end()) {
    return Status(StatusCode::kDuplicateName,
                  "a call that adds " + Describe(calls_.at(pending->second).set) +
                      " by its members is pending" +
                      (set.tag.empty() ? "" : " with the tag \"" + set.tag + "\"") +
                      "; use different tags for concurrent calls");
  }
  if (const Status* const cause = LossIn(set.ranks)) return *cause;
  const uint64_t number = ++last_call_;
  const int leader = key.first.front();
  calls_[number] = {set, key, leader, std::nullopt};
  calls_by_key_[key] = number;
  Send(leader, {.type = Type::kAsk, .call = number, .set = std::move(set), .cause = {}});
  return number;
}

void SetCreations::OnMade(int leader, const SetCreationFrame& frame) {
  const auto found = calls_.find(frame.call);
  // If this rank has withdrawn, the leader is notified of that.
  if (found == calls_.end() || found->second.leader != leader || found->second.number) return;
  found->second.number = frame.number;
  steps_.push_back({.kind = Step::Kind::kRegister,
                    .rank = leader,
                    .number = frame.number,
                    .set = found->second.set});
  Send(leader, {.type = Type::kReady, .number = frame.number, .set = {}, .cause = {}});
}

void SetCreations::OnBegin(int leader, uint32_t number) {
  const auto found = std::find_if(calls_.begin(), calls_.end(), [&](const auto& entry) {
    return entry.second.leader == leader && entry.second.number == number;
  });
  if (found == calls_.end()) return;
  steps_.push_back(
      {.kind = Step::Kind::kBegun, .rank = leader, .number = number, .call = found->first});
  (void)End(found->first);
}

SetCreations::OwnCall SetCreations::End(uint64_t call) {
  const auto found = calls_.find(call);
  OwnCall ended = std::move(found->second);
  calls_.erase(found);
  calls_by_key_.erase(ended.key);
  return ended;
}

void SetCreations::Fail(uint64_t call, const Status& cause) {
  if (!calls_.contains(call)) return;
  const OwnCall failed = End(call);
  if (failed.number) {
    steps_.push_back({.kind = Step::Kind::kDiscard,
                      .rank = failed.leader,
                      .number = *failed.number,
                      .cause = cause});
  }
  steps_.push_back(
      {.kind = Step::Kind::kFailed, .rank = failed.leader, .call = call, .cause = cause});
}

void SetCreations::GiveUp(uint64_t call, const Status& cause) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  const NewSet set = found->second.set;
  Fail(call, cause);
  Withdraw(set, cause);
}

void SetCreations::Withdraw(const NewSet& set, const Status& cause) {
  for (const int rank : set.ranks) {
    if (lost_.contains(rank)) continue;
    Send(rank, {.type = Type::kWithdrawn, .set = set, .cause = cause});
  }
}

void SetCreations::OnLost(int lost_rank, const Status& cause, bool only_here) {
  lost_.emplace(lost_rank, cause);
  std::vector<uint64_t> concerned;
  for (const auto& [number, call] : calls_) {
    if (Has(call.set.ranks, lost_rank)) concerned.push_back(number);
  }
  for (const uint64_t call : concerned) {
    if (only_here) {
      GiveUp(call, cause);
    } else {
      Fail(call, cause);
    }
  }
  ForgetAttemptsOf(lost_rank, cause);
}

void SetCreations::OnSetFailed(int leader, uint32_t number, const Status& cause) {
  for (const auto& [call, own] : calls_) {
    if (own.leader != leader || own.number != number) continue;
    const uint64_t failed = call;
    if (const auto made = made_.find(number); leader == rank_ && made != made_.end()) {
      const auto asks = std::move(made->second.asks);
      made_.erase(made);
      return Refuse(asks, cause);  // including this rank's own call
    }
    return Fail(failed, cause);
  }
}

// ------------------------------------------------------------------ the leader

Status SetCreations::OnAsk(int from_rank, const SetCreationFrame& frame) {
  const Key key = KeyOf(frame.set);
  const std::vector<int>& ranks = key.first;
  if (ranks.empty() || ranks.front() != rank_ || ranks.back() >= size_ || !Has(ranks, from_rank) ||
      std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return Status::Protocol("it asks for a process set that it can't create with this rank");
  }
  if (const Status* const cause = LossIn(ranks)) {
    Refuse(from_rank, frame.call, *cause);
    return Status::Ok();
  }
  if (asks_of_[from_rank] >= kMostAsks) {
    Refuse(from_rank, frame.call,
           Status::InvalidArgument("rank " + std::to_string(rank_) +
                                   " has not called add_process_set() for the first " +
                                   std::to_string(kMostAsks) + " process sets that rank " +
                                   std::to_string(from_rank) + " is creating with it"));
    return Status::Ok();
  }
  Attempt& attempt = AttemptFor(from_rank, key);
  attempt.asks.emplace(from_rank, Ask{frame.call, frame.set});
  ++asks_of_[from_rank];
  if (!attempt.failure.ok()) Refuse(from_rank, frame.call, attempt.failure);
  EndIfComplete(key);
  return Status::Ok();
}

SetCreations::Attempt& SetCreations::AttemptFor(int from_rank, const Key& key) {
  std::deque<Attempt>& attempts = attempts_[key];
  for (Attempt& attempt : attempts) {
    if (!attempt.asks.contains(from_rank)) return attempt;
  }
  return attempts.emplace_back();
}

// A member of an attempt is also in all earlier ones, so the first attempt completes first.
void SetCreations::EndIfComplete(const Key& key) {
  const auto found = attempts_.find(key);
  if (found->second.front().asks.size() < key.first.size()) return;
  Attempt attempt = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) attempts_.erase(found);
  for (const auto& [rank, ask] : attempt.asks) --asks_of_[rank];
  if (attempt.failure.ok()) Decide(key, attempt);
}

void SetCreations::Decide(const Key& key, const Attempt& attempt) {
  const auto number = TakeNumber(attempt);
  if (!number.ok()) return Refuse(attempt.asks, number.status());
  made_[*number] = {key, attempt.asks, {key.first.begin(), key.first.end()}};
  for (const auto& [rank, ask] : attempt.asks) {
    Send(rank, {.type = Type::kMade, .call = ask.call, .number = *number, .set = {}, .cause = {}});
  }
}

Result<uint32_t> SetCreations::TakeNumber(const Attempt& attempt) {
  HS_RETURN_IF_ERROR(CheckAgreement(attempt));
  const NewSet& set = attempt.asks.begin()->second.set;
  const auto existing = set.distinct ? std::nullopt : registered_.IdOf(set.ranks);
  if (existing) {
    return Status::InvalidArgument("a process set of " + RankList(set.ranks) +
                                   " already exists: process set " + std::to_string(*existing));
  }
  // Numbers whose ID is in use are skipped; this happens only after the numbers have wrapped
  // around.
  for (uint32_t tried = 0; tried < IdsByMembers(size_); ++tried) {
    const uint32_t number = next_number_++;
    if (!registered_.HasId(IdByMembers(rank_, number, size_))) return number;
  }
  return Status(StatusCode::kSystem, "rank " + std::to_string(rank_) + " is the lowest member of " +
                                         std::to_string(IdsByMembers(size_)) +
                                         " process sets, which is the limit");
}

Status SetCreations::CheckAgreement(const Attempt& attempt) const {
  const NewSet& first = attempt.asks.begin()->second.set;
  if (std::all_of(attempt.asks.begin(), attempt.asks.end(),
                  [&](const auto& entry) { return entry.second.set == first; })) {
    return Status::Ok();
  }
  std::map<std::string, std::vector<int>> said;  // truncated lists of ranks may be equal
  for (const auto& [rank, ask] : attempt.asks) said[Describe(ask.set)].push_back(rank);
  std::string text = "the members of a new process set passed different arguments: ";
  const char* before = "";
  for (const auto& [what, ranks] : said) {
    text += before + RankList(ranks) + ": " + what;
    before = "; ";
  }
  return {StatusCode::kMismatch, std::move(text)};
}

void SetCreations::OnReady(int from_rank, uint32_t number) {
  const auto found = made_.find(number);
  if (found == made_.end() || found->second.awaited.erase(from_rank) == 0) return;
  if (!found->second.awaited.empty()) return;
  const Made made = std::move(found->second);
  made_.erase(found);
  for (const auto& [rank, ask] : made.asks) {
    Send(rank, {.type = Type::kBegin, .number = number, .set = {}, .cause = {}});
  }
}

// The leader fails the attempt that contains the member. Other members that learn of it first fail
// it themselves, because the member may be unable to reach the leader.
void SetCreations::OnWithdrawn(int from_rank, const SetCreationFrame& frame) {
  const Key key = KeyOf(frame.set);
  if (!Has(key.first, from_rank) || !Has(key.first, rank_)) return;
  if (key.first.front() != rank_) {
    const auto found = calls_by_key_.find(key);
    if (found == calls_by_key_.end()) return;
    const NewSet own = calls_.at(found->second).set;
    Fail(found->second, frame.cause);
    const int leader = key.first.front();
    if (lost_.contains(leader)) return;
    Send(leader, {.type = Type::kWithdrawn, .set = own, .cause = frame.cause});
    return;
  }
  for (auto& [number, made] : made_) {
    if (made.key != key || !made.awaited.contains(from_rank)) continue;
    const Made failed = std::move(made);
    made_.erase(number);
    return Refuse(failed.asks, frame.cause);
  }
  const auto found = attempts_.find(key);
  if (found == attempts_.end()) return;
  for (auto attempt = found->second.rbegin(); attempt != found->second.rend(); ++attempt) {
    if (!attempt->asks.contains(from_rank)) continue;
    if (!attempt->failure.ok()) return;
    attempt->failure = frame.cause;
    return Refuse(std::map(attempt->asks), frame.cause);
  }
}

void SetCreations::Refuse(const std::map<int, Ask>& asks, const Status& cause) {
  for (const auto& [rank, ask] : asks) Refuse(rank, ask.call, cause);
}

void SetCreations::Refuse(int to_rank, uint64_t call, const Status& cause) {
  if (lost_.contains(to_rank)) return;
  Send(to_rank, {.type = Type::kRefused, .call = call, .set = {}, .cause = cause});
}

void SetCreations::ForgetAttemptsOf(int lost_rank, const Status& cause) {
  std::vector<std::map<int, Ask>> failed;
  for (auto at = attempts_.begin(); at != attempts_.end();) {
    if (!Has(at->first.first, lost_rank)) {
      ++at;
      continue;
    }
    for (Attempt& attempt : at->second) {
      for (const auto& [rank, ask] : attempt.asks) --asks_of_[rank];
      if (attempt.failure.ok()) failed.push_back(std::move(attempt.asks));
    }
    at = attempts_.erase(at);
  }
  for (auto at = made_.begin(); at != made_.end();) {
    if (!Has(at->second.key.first, lost_rank)) {
      ++at;
      continue;
    }
    failed.push_back(std::move(at->second.asks));
    at = made_.erase(at);
  }
  for (const auto& asks : failed) Refuse(asks, cause);
}

std::vector<int> SetCreations::MissedBy(uint64_t call) const {
  const auto own = calls_.find(call);
  if (own == calls_.end()) return {};
  if (own->second.leader != rank_) return {own->second.leader};
  const Key& key = own->second.key;
  std::vector<int> missing;
  const auto attempts = attempts_.find(key);
  if (attempts == attempts_.end()) {
    const auto made = made_.find(own->second.number.value_or(next_number_));
    if (made != made_.end()) {
      missing.assign(made->second.awaited.begin(), made->second.awaited.end());
    }
    return missing;
  }
  const Attempt& attempt = attempts->second.front();
  for (const int rank : key.first) {
    if (!attempt.asks.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

}  // namespace horoscale
