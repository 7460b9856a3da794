#include "rendezvous/memory_store.h"

#include <algorithm>
#include <chrono>
#include <string>

namespace horoscale {

Status MemoryStore::Set(std::string_view key, std::span<const std::byte> value) {
  {
    const std::lock_guard lock(mutex_);
    HS_RETURN_IF_ERROR(table_.Set(key, value));
  }
  changed_.notify_all();
  return Status::Ok();
}

Result<std::vector<std::byte>> MemoryStore::Get(std::string_view key, double seconds) {
  const std::chrono::duration<double> bounded(std::clamp(seconds, 0.0, 1e9));
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::nanoseconds>(bounded);
  std::unique_lock lock(mutex_);
  const std::vector<std::byte>* value = nullptr;
  const auto is_set = [&] { return (value = table_.Find(key)) != nullptr; };
  if (!changed_.wait_until(lock, deadline, is_set)) {
    return Status::Timeout("nobody set the store's key '" + std::string(key) + "' within " +
                           std::to_string(seconds) + " s");
  }
  return *value;
}

}  // namespace horoscale
