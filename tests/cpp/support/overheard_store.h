// A store that shows a test what ranks contribute to a gathering, as an attacker could see it.
#pragma once

#include <future>
#include <string>
#include <vector>

#include "rendezvous/store.h"

namespace horoscale {

class OverheardStore final : public Store {
 public:
  // Rank 0's value for this key is forwarded as well.
  OverheardStore(Store& store, std::string key) : store_(store), key_(std::move(key)) {}

  std::future<std::string> value() { return value_.get_future(); }

  Status Set(std::string_view key, std::span<const std::byte> value) override {
    return store_.Set(key, value);
  }
  Result<std::vector<std::byte>> Get(std::string_view key, double seconds) override {
    return store_.Get(key, seconds);
  }
  Result<Gathered> Gather(const GatherRequest& request, double seconds) override {
    if (request.key == key_ && request.place == 0) {
      value_.set_value({reinterpret_cast<const char*>(request.value.data()), request.value.size()});
    }
    return store_.Gather(request, seconds);
  }

 private:
  Store& store_;
  const std::string key_;
  std::promise<std::string> value_;
};

}  // namespace horoscale
