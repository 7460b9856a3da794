// FickleExchange: a single-threaded Exchange that uses every freedom of the contract: calls
// randomly return "not yet", fresh banks contain garbage, and readers see garbage outside their
// extents and after their release. It checks the rules of exchange.h on every call.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "transport/exchange.h"

namespace horoscale::testing {

class FickleExchange;

struct FickleOptions {
  uint32_t members = 2;
  size_t chunk_bytes = 4096;
  uint32_t banks = 4;
  uint64_t seed = 1;
  double refusals = 0.3;             // fraction of calls that fail although they could succeed
  std::vector<uint32_t> hosts = {};  // of the members; empty if they are all on one
};

// The members of one set.
class FickleHub {
 public:
  explicit FickleHub(const FickleOptions& options);

  Exchange& member(uint32_t index);
  uint32_t size() const { return static_cast<uint32_t>(members_.size()); }

  // Bytes of chunks that a host has sent to, and received from, other hosts.
  int64_t bytes_sent_by(uint32_t host) const { return sent_[host]; }
  int64_t bytes_received_by(uint32_t host) const { return received_[host]; }
  int64_t messages_sent_by(uint32_t host) const { return messages_[host]; }
  int64_t sealed_bytes_sent_by(uint32_t host) const { return sealed_[host]; }

 private:
  friend class FickleExchange;
  bool Refuses() { return std::uniform_real_distribution<>(0, 1)(random_) < options_.refusals; }

  const FickleOptions options_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<FickleExchange>> members_;
  std::vector<int64_t> sent_;  // by host
  std::vector<int64_t> received_;
  std::vector<int64_t> messages_;
  std::vector<int64_t> sealed_;
};

class FickleExchange : public Exchange {
 public:
  FickleExchange(FickleHub& hub, uint32_t self)
      : hub_(hub), self_(self), banks_(hub.options_.banks), views_(hub.options_.members) {
    for (auto& views : views_) views.resize(banks());
  }

  uint32_t size() const override { return hub_.options_.members; }
  uint32_t self() const override { return self_; }
  size_t chunk_bytes() const override { return hub_.options_.chunk_bytes; }
  uint32_t banks() const override { return hub_.options_.banks; }
  std::span<const uint32_t> hosts() const override { return hub_.options_.hosts; }

  std::byte* Reserve(uint64_t round) override {
    EXPECT_GE(round, next_to_publish_);
    for (const auto& member : hub_.members_) {
      if (round >= member->released_ + banks()) return nullptr;
    }
    if (hub_.Refuses()) return nullptr;
    std::vector<std::byte>& bank = banks_[round % banks()];
    if (reserved_ != round) bank.assign(chunk_bytes(), std::byte{0xa5});
    reserved_ = round;
    return bank.data();
  }

  void Publish(uint64_t round, size_t bytes, std::span<const Extent> extents) override {
    Put(round, banks_[round % banks()].data(), bytes, extents);
    for (auto& views : views_) Deliver(views[round % banks()]);
  }

  // Only between hosts. The bytes are read when a reader or this member polls, with their content
  // at that time.
  bool PublishInPlace(uint64_t round, const std::byte* chunk, size_t bytes,
                      std::span<const Extent> extents) override {
    const std::vector<uint32_t>& hosts = hub_.options_.hosts;
    if (hosts.empty() || extents.size() != size()) return false;
    for (uint32_t reader = 0; reader < size(); ++reader) {
      if (reader != self_ && hosts[reader] == hosts[self_] && extents[reader].bytes > 0) {
        return false;
      }
    }
    Put(round, chunk, bytes, extents);
    return true;
  }
  bool HasLeft(uint64_t round) const override {
    if (hub_.Refuses()) return false;
    for (auto& views : views_) {
      if (views[round % banks()].round == round) Deliver(views[round % banks()]);
    }
    return true;
  }

  const std::byte* Peek(uint64_t round, uint32_t member) override {
    EXPECT_NE(member, self_);
    EXPECT_GE(round, released_) << "a chunk was read after its release";
    View& view = hub_.members_[member]->views_[self_][round % banks()];
    EXPECT_TRUE(view.round != round || view.is_for_reader) << "waits for what isn't sent to it";
    if (view.round != round || hub_.Refuses()) return nullptr;
    Deliver(view);
    return view.chunk.data();
  }

  void Release(uint64_t round) override {
    EXPECT_GE(round, released_);
    released_ = round + 1;
    for (const auto& member : hub_.members_) {
      for (View& view : member->views_[self_]) {
        if (view.round < released_)
          std::fill(view.chunk.begin(), view.chunk.end(), std::byte{0xdd});
      }
    }
  }

  uint64_t released() const { return released_; }

 private:
  struct View {
    std::optional<uint64_t> round;
    bool is_for_reader = false;
    std::vector<std::byte> chunk;
    const std::byte* place = nullptr;  // memory of an extent that has not been sent yet
    Extent extent;
  };

  void Put(uint64_t round, const std::byte* chunk, size_t bytes, std::span<const Extent> extents) {
    ASSERT_EQ(reserved_, round);
    ASSERT_LE(bytes, chunk_bytes());
    ASSERT_TRUE(extents.empty() || extents.size() == size());
    reserved_.reset();
    next_to_publish_ = round + 1;
    for (uint32_t reader = 0; reader < size(); ++reader) {
      const Extent extent = extents.empty() ? Extent{0, bytes} : extents[reader];
      ASSERT_LE(extent.offset + extent.bytes, chunk_bytes());
      if (reader == self_) continue;
      View& view = views_[reader][round % banks()];
      view.round = round;
      view.is_for_reader = extents.empty() || extent.bytes > 0;
      if (view.is_for_reader) Count(reader, extent.bytes);
      view.chunk.assign(chunk_bytes(), std::byte{0xee});
      view.place = chunk;
      view.extent = extent;
    }
  }

  static void Deliver(View& view) {
    if (view.place == nullptr) return;
    const auto offset = static_cast<ptrdiff_t>(view.extent.offset);
    std::copy_n(std::exchange(view.place, nullptr) + offset, view.extent.bytes,
                view.chunk.begin() + offset);
  }

  void Count(uint32_t reader, size_t bytes) {
    const std::vector<uint32_t>& hosts = hub_.options_.hosts;
    if (hosts.empty() || hosts[self_] == hosts[reader]) return;
    ++hub_.messages_[hosts[self_]];
    hub_.sent_[hosts[self_]] += static_cast<int64_t>(bytes);
    if (sealed) hub_.sealed_[hosts[self_]] += static_cast<int64_t>(bytes);
    hub_.received_[hosts[reader]] += static_cast<int64_t>(bytes);
  }

  FickleHub& hub_;
  const uint32_t self_;
  std::vector<std::vector<std::byte>> banks_;
  mutable std::vector<std::vector<View>> views_;  // of this member's chunks, by reader and bank
  std::optional<uint64_t> reserved_;
  uint64_t next_to_publish_ = 0;
  uint64_t released_ = 0;  // rounds below it
};

inline FickleHub::FickleHub(const FickleOptions& options)
    : options_(options),
      random_(options.seed),
      sent_(options.members),
      received_(options.members),
      messages_(options.members),
      sealed_(options.members) {
  for (uint32_t m = 0; m < options.members; ++m) {
    members_.push_back(std::make_unique<FickleExchange>(*this, m));
  }
}

inline Exchange& FickleHub::member(uint32_t index) { return *members_[index]; }

}  // namespace horoscale::testing
