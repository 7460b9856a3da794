// A set's residuals: saved to bytes and loaded back, and loading of arbitrary bytes.
#include "runtime/set_residuals.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace horoscale {
namespace {

SetPlace Place(int rank, std::vector<int> ranks = {0, 1, 2}) {
  return {{.process_set = 1}, std::move(ranks), rank};
}

// Tensors that differ in every property.
void Fill(SetResiduals& residuals) {
  const auto small = residuals.Of("a", 0);
  small->Prepare({2, 2, 4096}, HomeOf("a", 0), 100);
  small->sums.assign(small->sums.size(), 0.5f);
  const auto large = residuals.Of("b", 3);
  large->Prepare({1, 3, 4096}, HomeOf("b", 3), 30'000);
  large->sums.assign(large->sums.size(), -1.5f);
  large->results.assign(large->results.size(), 2.0f);
  const auto scattered = residuals.Of("c", 0);
  scattered->PrepareShares({7, 0, 300}, 4096, 300);
  scattered->sums.assign(300, 0.25f);
}

TEST(SetResidualsTest, TensorsHaveTheirOwn) {
  SetResiduals residuals(Place(1));
  EXPECT_EQ(residuals.Of("a", 0), residuals.Of("a", 0));
  EXPECT_NE(residuals.Of("a", 0), residuals.Of("a", 1));
  EXPECT_NE(residuals.Of("a", 0), residuals.Of("b", 0));
  EXPECT_EQ(residuals.Of("", 0), nullptr);  // unnamed operations keep no residuals
}

TEST(SetResidualsTest, WhatIsSavedCanBeLoaded) {
  SetResiduals residuals(Place(1));
  Fill(residuals);
  const std::vector<std::byte> saved = residuals.Save();
  SetResiduals other(Place(1));
  ASSERT_TRUE(other.Load(saved).ok());
  EXPECT_EQ(other.Save(), saved);
  EXPECT_EQ(other.Of("a", 0)->sums, residuals.Of("a", 0)->sums);
  EXPECT_EQ(other.Of("b", 3)->results, residuals.Of("b", 3)->results);
  EXPECT_EQ(other.Of("b", 3)->places, residuals.Of("b", 3)->places);
  EXPECT_EQ(other.Of("c", 0)->sums, residuals.Of("c", 0)->sums);
  EXPECT_EQ(other.Of("c", 0)->shares, residuals.Of("c", 0)->shares);
}

TEST(SetResidualsTest, WhatWasNeverEncodedIsNotSaved) {
  SetResiduals residuals(Place(1));
  Fill(residuals);
  const std::vector<std::byte> saved = residuals.Save();
  ASSERT_NE(residuals.Of("a minimum", 0), nullptr);
  EXPECT_EQ(residuals.Save(), saved);
}

TEST(SetResidualsTest, AnotherMembersAndSetsAreRefused) {
  SetResiduals residuals(Place(1));
  Fill(residuals);
  const std::vector<std::byte> saved = residuals.Save();
  SetResiduals neighbour(Place(2));
  EXPECT_EQ(neighbour.Load(saved).code(), StatusCode::kMismatch);
  SetResiduals elsewhere(Place(1, {0, 1, 4}));
  EXPECT_EQ(elsewhere.Load(saved).code(), StatusCode::kMismatch);
  EXPECT_EQ(elsewhere.Save(), SetResiduals(Place(1, {0, 1, 4})).Save());
}

TEST(SetResidualsTest, DamagedOnesAreRefused) {
  SetResiduals residuals(Place(1));
  Fill(residuals);
  const std::vector<std::byte> saved = residuals.Save();
  std::mt19937_64 random(1);
  SetResiduals other(Place(1));
  EXPECT_EQ(other.Load({}).code(), StatusCode::kInvalidArgument);
  for (size_t size = 0; size < saved.size(); size = size < 80 ? size + 1 : size * 2) {
    EXPECT_FALSE(other.Load(std::span(saved).first(size)).ok()) << size;
  }
  for (int i = 0; i < 1000; ++i) {
    std::vector<std::byte> damaged = saved;
    damaged[random() % 80] = static_cast<std::byte>(random());
    if (other.Load(damaged).ok()) {
      EXPECT_EQ(other.Save().size(), saved.size());
    }
  }
}

TEST(SetResidualsTest, TheyAreScaledAndForgotten) {
  SetResiduals residuals(Place(1));
  Fill(residuals);
  residuals.Scale(4.0);
  EXPECT_EQ(residuals.Of("a", 0)->sums[0], 2.0f);
  EXPECT_EQ(residuals.Of("b", 3)->results[0], 8.0f);
  residuals.Scale(0.0);
  EXPECT_TRUE(residuals.Of("a", 0)->sums.empty());
}

TEST(SetResidualsTest, NamesThatAreMadeAnewEndSomewhere) {
  SetResiduals residuals(Place(0));
  for (size_t i = 0; i < SetResiduals::kMostTensors; ++i) {
    ASSERT_NE(residuals.Of(std::to_string(i), 0), nullptr);
  }
  EXPECT_EQ(residuals.Of("one more", 0), nullptr);
  EXPECT_NE(residuals.Of("7", 0), nullptr);
}

}  // namespace
}  // namespace horoscale
