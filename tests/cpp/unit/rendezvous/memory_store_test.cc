#include "rendezvous/memory_store.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <thread>

#include "platform/clock.h"
#include "rendezvous/store_protocol.h"

namespace horoscale {
namespace {

std::vector<std::byte> Bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

TEST(StoreTableTest, AKeyIsSetOnce) {
  StoreTable table;
  EXPECT_EQ(table.Find("k"), nullptr);
  ASSERT_TRUE(table.Set("k", Bytes("v")).ok());
  EXPECT_TRUE(table.Set("k", Bytes("v")).ok());
  EXPECT_EQ(table.Set("k", Bytes("w")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*table.Find("k"), Bytes("v"));
}

TEST(StoreTableTest, SizesAreBounded) {
  StoreTable table;
  EXPECT_FALSE(table.Set("", {}).ok());
  EXPECT_FALSE(table.Set(std::string(kStoreMaxKeyBytes + 1, 'k'), {}).ok());
  EXPECT_TRUE(table.Set(std::string(kStoreMaxKeyBytes, 'k'), {}).ok());
  EXPECT_FALSE(table.Set("k", std::vector<std::byte>(kStoreMaxValueBytes + 1)).ok());
  EXPECT_TRUE(table.Set("k", std::vector<std::byte>(kStoreMaxValueBytes)).ok());
}

TEST(StoreTableTest, TheWholeIsBoundedEvenForEmptyValues) {
  StoreTable table(10'000);
  int taken = 0;
  while (table.Set("key " + std::to_string(taken), {}).ok()) ++taken;
  EXPECT_GT(taken, 10);
  EXPECT_LT(taken, 100);
  EXPECT_TRUE(table.Set("key 0", {}).ok()) << "what is there already takes no room";
}

TEST(MemoryStoreTest, GetWaitsForSet) {
  MemoryStore store;
  std::thread setter([&] { EXPECT_TRUE(store.Set("k", Bytes("v")).ok()); });
  const Result<std::vector<std::byte>> value =
      store.Get("k", std::numeric_limits<double>::infinity());
  setter.join();
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*value, Bytes("v"));
}

TEST(MemoryStoreTest, GetGivesUpAndNamesTheKey) {
  MemoryStore store;
  const double start = MonotonicSeconds();
  const Result<std::vector<std::byte>> value = store.Get("rank 3", 0.02);
  EXPECT_GE(MonotonicSeconds() - start, 0.0199);
  EXPECT_EQ(value.status().code(), StatusCode::kTimeout);
  EXPECT_NE(value.status().message().find("rank 3"), std::string::npos);
  EXPECT_EQ(store.Get("rank 3", 0).status().code(), StatusCode::kTimeout);
}

}  // namespace
}  // namespace horoscale
