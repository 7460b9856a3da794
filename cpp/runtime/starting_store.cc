#include "runtime/starting_store.h"

#include <algorithm>
#include <utility>

#include "base/rank_list.h"

namespace horoscale {
namespace {

// Time to publish a timeout in the store after the deadline.
constexpr double kLastWordsSeconds = 1;

std::string TextOf(std::span<const std::byte> value) {
  return std::string(reinterpret_cast<const char*>(value.data()), value.size());
}

Status AnotherFailed() { return {StatusCode::kSystem, "another rank failed to start"}; }

Status WithFirstCause(const Status& failure, const std::string& cause) {
  return {failure.code(), failure.message() + "; the first to fail was " + cause, failure.detail()};
}

}  // namespace

StartingStore::StartingStore(std::unique_ptr<Store> store, std::string prefix, int rank)
    : store_(std::move(store)), prefix_(std::move(prefix)), rank_(rank) {}

Result<std::unique_ptr<StartingStore>> StartingStore::Join(std::unique_ptr<StoreClient> client,
                                                           const JoinRequest& request,
                                                           const Deadline& deadline) {
  client->EndBy(Deadline::After(deadline.SecondsLeft() + kLastWordsSeconds));
  // After all ranks have started, it is not read any more.
  const std::string will = "rank " + std::to_string(request.rank) +
                           ": its process exited or lost its connection to the job's store before "
                           "all ranks had started; check its output";
  GatherRequest join;
  join.key = request.job;
  join.place = static_cast<uint32_t>(request.rank);
  join.count = static_cast<uint32_t>(request.size);
  join.value = std::as_bytes(std::span(request.card));
  join.label = request.label;
  join.will = will;
  const std::string failed_key = FailedKey(request.job);
  join.unless = failed_key;
  const auto joined = client->Gather(join, deadline.SecondsLeft());
  if (joined.status().code() == StatusCode::kTimeout) {
    const FailureDetail& detail = joined.status().detail();
    return Status(StatusCode::kTimeout,
                  RankList(detail.ranks) + " of " + std::to_string(request.size) +
                      " did not call init() in time (START_TIMEOUT sets the limit)",
                  detail);
  }
  if (joined.status().code() == StatusCode::kRankFailed) {
    return WithFirstCause(AnotherFailed(), joined.status().message());
  }
  if (!joined.ok()) return joined.status();
  auto store = std::make_unique<StartingStore>(
      std::move(client), RoundPrefix(request.job, joined->round), request.rank);
  for (const auto& [rank, card] : joined->values) {
    store->cards_.emplace(static_cast<int>(rank), TextOf(card));
  }
  return store;
}

Status StartingStore::Set(std::string_view key, std::span<const std::byte> value) {
  return store_->Set(key, value);
}

Result<std::vector<std::byte>> StartingStore::Get(std::string_view key, double seconds) {
  return store_->Get(key, seconds);
}

Result<Gathered> StartingStore::Gather(const GatherRequest& request, double seconds) {
  const std::string failed_key = FailedKey(prefix_);
  GatherRequest bounded = request;
  bounded.unless = failed_key;
  auto gathered = store_->Gather(bounded, seconds);
  if (gathered.status().code() == StatusCode::kRankFailed) return AnotherFailed();
  return gathered;
}

Status StartingStore::Look() {
  const auto failed = store_->Get(FailedKey(prefix_), 0);
  if (failed.status().code() == StatusCode::kTimeout) return {};
  if (!failed.ok()) return failed.status();
  return AnotherFailed();
}

Status StartingStore::Explain(const Status& failure) {
  if (explained_) return failure;
  explained_ = true;
  const std::string key = FailedKey(prefix_);
  const std::string own = "rank " + std::to_string(rank_) + ": " + failure.message();
  if (store_->Set(key, std::as_bytes(std::span(own))).ok()) return failure;
  const auto first = store_->Get(key, 0);
  if (!first.ok()) return failure;
  return WithFirstCause(failure, TextOf(*first));
}

}  // namespace horoscale
