#include "runtime/starting_store.h"

#include <algorithm>
#include <utility>

namespace horoscale {
namespace {

// Who has waited for others in vain says so in the store, when all time is over.
constexpr double kLastWordsSeconds = 1;

std::string FailedKey(const std::string& key_prefix) { return key_prefix + "failed"; }

}  // namespace

StartingStore::StartingStore(std::unique_ptr<Store> store, const std::string& key_prefix, int rank)
    : store_(std::move(store)), failed_key_(FailedKey(key_prefix)), rank_(rank) {}

Result<std::unique_ptr<StartingStore>> StartingStore::Create(std::unique_ptr<StoreClient> client,
                                                             const std::string& key_prefix,
                                                             int rank, const Deadline& deadline) {
  client->EndBy(Deadline::After(deadline.SecondsLeft() + kLastWordsSeconds));
  // Once all have started, nobody looks at it any more.
  const std::string will = "rank " + std::to_string(rank) +
                           ": its process ended, or lost its connection to the job's store, "
                           "before all ranks had started: look at its output";
  HS_RETURN_IF_ERROR(client->LeaveWill(FailedKey(key_prefix), std::as_bytes(std::span(will))));
  return std::make_unique<StartingStore>(std::move(client), key_prefix, rank);
}

Status StartingStore::Set(std::string_view key, std::span<const std::byte> value) {
  return store_->Set(key, value);
}

Result<std::vector<std::byte>> StartingStore::Get(std::string_view key, double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  while (true) {
    auto value = store_->Get(key, std::min(kLookSeconds, deadline.SecondsLeft()));
    if (value.status().code() != StatusCode::kTimeout) return value;
    if (deadline.Passed()) {
      return Status::Timeout("nobody set the store's key '" + std::string(key) + "' within " +
                             std::to_string(seconds) + " s");
    }
    HS_RETURN_IF_ERROR(Look());
  }
}

Status StartingStore::Look() {
  const auto failed = store_->Get(failed_key_, 0);
  if (failed.status().code() == StatusCode::kTimeout) return {};
  if (!failed.ok()) return failed.status();
  return Status(StatusCode::kSystem, "another rank could not start");
}

Status StartingStore::Explain(const Status& failure) {
  if (explained_) return failure;
  explained_ = true;
  const std::string own = "rank " + std::to_string(rank_) + ": " + failure.message();
  if (store_->Set(failed_key_, std::as_bytes(std::span(own))).ok()) return failure;
  const auto first = store_->Get(failed_key_, 0);
  if (!first.ok()) return failure;
  const std::string text(reinterpret_cast<const char*>(first->data()), first->size());
  return {failure.code(), failure.message() + "; the first to fail was " + text, failure.detail()};
}

}  // namespace horoscale
