#include "rendezvous/memory_store.h"

#include <algorithm>
#include <chrono>
#include <string>

namespace horoscale {
namespace {

auto At(double seconds) {
  const std::chrono::duration<double> bounded(std::clamp(seconds, 0.0, 1e9));
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::nanoseconds>(bounded);
}

}  // namespace

Status MemoryStore::Set(std::string_view key, std::span<const std::byte> value) {
  {
    const std::lock_guard lock(mutex_);
    HS_RETURN_IF_ERROR(table_.Set(key, value));
  }
  changed_.notify_all();
  return Status::Ok();
}

Result<std::vector<std::byte>> MemoryStore::Get(std::string_view key, double seconds) {
  std::unique_lock lock(mutex_);
  const std::vector<std::byte>* value = nullptr;
  const auto is_set = [&] { return (value = table_.Find(key)) != nullptr; };
  if (!changed_.wait_until(lock, At(seconds), is_set)) {
    return Status::Timeout("no rank set the store's key '" + std::string(key) + "' within " +
                           std::to_string(seconds) + " s");
  }
  return *value;
}

Result<Gathered> MemoryStore::Gather(const GatherRequest& request, double seconds) {
  std::unique_lock lock(mutex_);
  const Gatherings::Guest self = next_guest_++;
  const std::string key(request.key);
  const auto given_up = [&] {
    return !request.unless.empty() && table_.Find(request.unless) != nullptr;
  };
  Tell(gatherings_.Add(self, request));
  const auto is_over = [&] { return answers_.contains(self) || given_up(); };
  if (!changed_.wait_until(lock, At(seconds), is_over)) Tell(gatherings_.Expire(self, key));
  if (!answers_.contains(self)) {
    Tell(gatherings_.Remove(self, key));
    const std::vector<std::byte>& why = *table_.Find(request.unless);
    return Status(StatusCode::kRankFailed,
                  std::string(reinterpret_cast<const char*>(why.data()), why.size()));
  }
  Result<Gathered> answer = std::move(answers_.at(self));
  answers_.erase(self);
  return answer;
}

void MemoryStore::Tell(Gatherings::Outcome outcome) {
  for (const auto& [guests, gathered] : outcome.complete) {
    for (const Gatherings::Guest guest : guests) answers_.emplace(guest, gathered);
  }
  for (const auto& [guest, why] : outcome.refused) answers_.emplace(guest, why);
  changed_.notify_all();
}

}  // namespace horoscale
