#include "rendezvous/gatherings.h"

#include <algorithm>

#include "base/rank_list.h"

namespace horoscale {
namespace {

constexpr size_t kEntryOverheadBytes = 256;  // approximate overhead of an entry

std::string Rank(uint32_t place) { return "rank " + std::to_string(place); }

Status GivenUp(const std::string& reason) { return {StatusCode::kRankFailed, reason}; }

}  // namespace

Gatherings::Outcome Gatherings::Add(Guest guest, const GatherRequest& request) {
  Outcome outcome;
  const auto [at, is_new] = table_.try_emplace(std::string(request.key));
  Gathering& gathering = at->second;
  if (is_new) gathering.is_join = !request.will.empty();
  if (gathering.entries.empty()) gathering.count = request.count;
  if (Status checked = Check(gathering, request); !checked.ok()) {
    // Contradictory job sizes: the others would wait for ranks that do not exist.
    Fail(gathering, request.place, Rank(request.place) + ": " + checked.message(), &outcome);
    outcome.refused.emplace_back(guest, std::move(checked));
    ForgetIfIdle(at);
    return outcome;
  }
  if (gathering.failure) {
    if (gathering.failure->told.insert(request.place).second) {
      outcome.refused.emplace_back(guest, GivenUp(gathering.failure->reason));
      return outcome;
    }
    gathering.failure.reset();  // a party that knows of it starts a new attempt
  }
  if (const auto earlier = gathering.entries.find(request.place);
      earlier != gathering.entries.end()) {
    outcome.refused.emplace_back(
        earlier->second.guest,
        Status::InvalidArgument("another process has already connected as " + Rank(request.place) +
                                ": give each process of the job its own rank"));
    Erase(gathering, earlier);
  }
  const size_t bytes = request.value.size() + request.label.size() + kEntryOverheadBytes;
  if (bytes > capacity_bytes_ - used_bytes_) {
    outcome.refused.emplace_back(
        guest, Status::InvalidArgument("the store is full: other values are being gathered"));
    ForgetIfIdle(at);
    return outcome;
  }
  used_bytes_ += bytes;
  gathering.entries[request.place] = {guest,
                                      std::string(request.label),
                                      std::string(request.will),
                                      {request.value.begin(), request.value.end()}};
  if (gathering.entries.size() < gathering.count) return outcome;
  Outcome complete = Complete(at);
  outcome.complete = std::move(complete.complete);
  return outcome;
}

Status Gatherings::Check(const Gathering& gathering, const GatherRequest& request) {
  if (gathering.count != request.count) {
    return Status::InvalidArgument("this process expects " + std::to_string(request.count) +
                                   " ranks, other processes expect " +
                                   std::to_string(gathering.count) +
                                   ": set the same size for all processes of the job");
  }
  if (gathering.is_join == request.will.empty()) {
    return Status::InvalidArgument("the store's key '" + std::string(request.key) +
                                   "' is used in two ways");
  }
  return {};
}

Gatherings::Outcome Gatherings::Complete(Table::iterator at) {
  Gathering& gathering = at->second;
  std::map<std::string, Party> parties;  // by label
  for (auto& [place, entry] : gathering.entries) {
    used_bytes_ -= entry.value.size() + entry.label.size() + kEntryOverheadBytes;
    Party& party = parties[entry.label];
    party.guests.push_back(entry.guest);
    party.gathered.round = gathering.round;
    party.gathered.values[place] = std::move(entry.value);
  }
  Outcome outcome;
  for (auto& [label, party] : parties) outcome.complete.push_back(std::move(party));
  gathering.entries.clear();
  gathering.failure.reset();
  if (gathering.is_join) {
    ++gathering.round;
  } else {
    table_.erase(at);
  }
  return outcome;
}

std::optional<Gatherings::Place> Gatherings::Find(Guest guest, const std::string& key) {
  const auto at = table_.find(key);
  if (at == table_.end()) return std::nullopt;
  auto& entries = at->second.entries;
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [guest](const auto& e) { return e.second.guest == guest; });
  if (entry == entries.end()) return std::nullopt;
  return Place{at, entry};
}

Gatherings::Outcome Gatherings::Remove(Guest guest, const std::string& key) {
  Outcome outcome;
  const auto found = Find(guest, key);
  if (!found) return outcome;
  const auto [at, entry] = *found;
  Gathering& gathering = at->second;
  const uint32_t place = entry->first;
  const std::string will = entry->second.will;
  Erase(gathering, entry);
  if (gathering.is_join) Fail(gathering, place, will, &outcome);
  ForgetIfIdle(at);
  return outcome;
}

Gatherings::Outcome Gatherings::Expire(Guest guest, const std::string& key) {
  Outcome outcome;
  const auto found = Find(guest, key);
  if (!found) return outcome;
  const auto [at, entry] = *found;
  Gathering& gathering = at->second;
  const uint32_t place = entry->first;
  const std::vector<int> missing = Missing(gathering);
  std::string text = RankList(missing) + " of " + std::to_string(gathering.count) +
                     " did not connect in time (START_TIMEOUT sets the limit)";
  if (gathering.round > 0) text += "; an earlier start was complete, perhaps without this process";
  const Status late(StatusCode::kTimeout, text, {missing, -1, ""});
  Erase(gathering, entry);
  outcome.refused.emplace_back(guest, late);
  if (gathering.is_join) {
    Fail(gathering, place, Rank(place) + ": " + text, &outcome);
  } else {
    // Otherwise the next to expire would count this one among the missing.
    for (auto& [other, waiting] : gathering.entries) {
      outcome.refused.emplace_back(waiting.guest, late);
    }
    while (!gathering.entries.empty()) Erase(gathering, gathering.entries.begin());
  }
  ForgetIfIdle(at);
  return outcome;
}

void Gatherings::Fail(Gathering& gathering, uint32_t place, const std::string& reason,
                      Outcome* outcome) {
  Failure failure = {reason, {place}};
  while (!gathering.entries.empty()) {
    const auto entry = gathering.entries.begin();
    failure.told.insert(entry->first);
    outcome->refused.emplace_back(entry->second.guest, GivenUp(reason));
    Erase(gathering, entry);
  }
  if (gathering.is_join) gathering.failure = std::move(failure);
}

std::vector<int> Gatherings::Missing(const Gathering& gathering) {
  std::vector<int> missing;
  for (uint32_t place = 0; place < gathering.count; ++place) {
    if (!gathering.entries.contains(place)) missing.push_back(static_cast<int>(place));
  }
  return missing;
}

void Gatherings::Erase(Gathering& gathering, std::map<uint32_t, Entry>::iterator entry) {
  used_bytes_ -= entry->second.value.size() + entry->second.label.size() + kEntryOverheadBytes;
  gathering.entries.erase(entry);
}

void Gatherings::ForgetIfIdle(Table::iterator at) {
  if (at->second.entries.empty() && !at->second.is_join) table_.erase(at);
}

}  // namespace horoscale
