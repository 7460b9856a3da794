// Models an exchange with any number of members, few of which are real. All others publish zeros in
// every round without delay, so that a real member runs the arithmetic of 100,000 members at the
// cost of one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "transport/exchange.h"

namespace horoscale::testing {

class SparseHub {
 public:
  static constexpr size_t kChunkBytes = 256 << 10;  // like all transports
  static constexpr uint32_t kBanks = 4;

  // `hosts`: of all members; empty if they are on one.
  SparseHub(uint32_t members, const std::vector<uint32_t>& real, std::vector<uint32_t> hosts = {})
      : size_(members), hosts_(std::move(hosts)), zeros_(kChunkBytes) {
    for (const uint32_t member : real) {
      members_.emplace(member, std::make_unique<Member>(*this, member));
    }
  }

  Exchange& member(uint32_t index) { return *members_.at(index); }

 private:
  class Member final : public Exchange {
   public:
    Member(SparseHub& hub, uint32_t self) : hub_(hub), self_(self) {}

    uint32_t size() const override { return hub_.size_; }
    uint32_t self() const override { return self_; }
    std::span<const uint32_t> hosts() const override { return hub_.hosts_; }
    size_t chunk_bytes() const override { return kChunkBytes; }
    uint32_t banks() const override { return kBanks; }

    std::byte* Reserve(uint64_t round) override {
      for (const auto& [index, member] : hub_.members_) {
        if (round >= member->released_ + kBanks) return nullptr;
      }
      // Exactly as large as the chunk, so that the address sanitizer sees writes beyond it.
      auto& bank = banks_[round % kBanks];
      if (bank == nullptr) bank = std::make_unique<std::byte[]>(kChunkBytes);
      if (reserved_ != round) std::fill_n(bank.get(), kChunkBytes, std::byte{0xa5});
      reserved_ = round;
      return bank.get();
    }

    void Publish(uint64_t round, size_t bytes, std::span<const Extent> extents) override {
      ASSERT_EQ(reserved_, round);
      const std::byte* const chunk = banks_[round % kBanks].get();
      ASSERT_LE(bytes, kChunkBytes);
      ASSERT_TRUE(extents.empty() || extents.size() == size());
      for (const Extent& extent : extents) {
        ASSERT_LE(extent.offset + extent.bytes, kChunkBytes);
      }
      for (const auto& [reader, member] : hub_.members_) {
        const Extent extent = extents.empty() ? Extent{0, bytes} : extents[reader];
        View& view = views_[reader][round % kBanks];
        view.round = round;
        view.is_for_reader = extents.empty() || extent.bytes > 0;
        view.chunk.assign(kChunkBytes, std::byte{0xee});
        std::copy_n(chunk + extent.offset, extent.bytes,
                    view.chunk.begin() + static_cast<ptrdiff_t>(extent.offset));
      }
      reserved_.reset();
    }

    const std::byte* Peek(uint64_t round, uint32_t member) override {
      EXPECT_GE(round, released_) << "a chunk was read after its release";
      const auto found = hub_.members_.find(member);
      if (found == hub_.members_.end()) return hub_.zeros_.data();
      const View& view = found->second->views_[self_][round % kBanks];
      EXPECT_TRUE(view.round != round || view.is_for_reader) << "waits for what isn't sent to it";
      return view.round == round ? view.chunk.data() : nullptr;
    }

    void Release(uint64_t round) override { released_ = round + 1; }

   private:
    struct View {
      std::optional<uint64_t> round;
      bool is_for_reader = false;
      std::vector<std::byte> chunk;
    };

    SparseHub& hub_;
    const uint32_t self_;
    std::array<std::unique_ptr<std::byte[]>, kBanks> banks_;
    std::optional<uint64_t> reserved_;
    std::map<uint32_t, std::array<View, kBanks>> views_;  // of this member's chunks, by real reader
    uint64_t released_ = 0;                               // rounds below it
  };

  const uint32_t size_;
  const std::vector<uint32_t> hosts_;
  const std::vector<std::byte> zeros_;
  std::map<uint32_t, std::unique_ptr<Member>> members_;
};

}  // namespace horoscale::testing
