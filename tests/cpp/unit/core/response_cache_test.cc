#include "core/response_cache.h"

#include <gtest/gtest.h>

#include "core/slot_table.h"
#include "core_cluster.h"

namespace horoscale {
namespace {

TEST(ResponseCache, FindsNamedUnitsByNameAndWholeSignature) {
  ResponseCache cache(2);
  ASSERT_TRUE(cache.Assign(3, 7, Allreduce({4}), 1).ok());
  EXPECT_EQ(cache.Find(7, Allreduce({4})), 3u);
  EXPECT_FALSE(cache.Find(7, Allreduce({5})));
  EXPECT_FALSE(cache.Find(8, Allreduce({4})));
  EXPECT_FALSE(cache.Find(kNoName, Allreduce({4})));
}

TEST(ResponseCache, FindsUnnamedUnitsBySignature) {
  ResponseCache cache(2);
  ASSERT_TRUE(cache.Assign(0, kNoName, Allreduce({4}), 1).ok());
  EXPECT_EQ(cache.Find(kNoName, Allreduce({4})), 0u);
  ASSERT_TRUE(cache.Retire(0).ok());
  EXPECT_FALSE(cache.Find(kNoName, Allreduce({4})));
  EXPECT_EQ(cache.size(), 0u);
}

TEST(ResponseCache, RefusesWhatThePlanCanNotMean) {
  ResponseCache cache(2);
  ASSERT_TRUE(cache.Assign(0, 1, Allreduce({4}), 1).ok());
  EXPECT_EQ(cache.Assign(0, 2, Allreduce({4}), 1).code(), StatusCode::kProtocol);
  EXPECT_EQ(cache.Assign(1, 1, Allreduce({5}), 1).code(), StatusCode::kProtocol);
  EXPECT_EQ(cache.Assign(4, 2, Allreduce({4}), 1).code(), StatusCode::kProtocol);
  EXPECT_EQ(cache.Retire(1).status().code(), StatusCode::kProtocol);
  ASSERT_TRUE(cache.Assign(1, 2, Allreduce({4}), 1).ok());
  EXPECT_EQ(cache.Assign(2, 3, Allreduce({4}), 1).code(), StatusCode::kProtocol);
}

class SlotTableTest : public ::testing::Test {
 protected:
  std::optional<uint32_t> Assign(SlotTable& table, const char* name, uint64_t sequence) {
    retired_.clear();
    const NameId id = names_.Acquire(name);
    const auto signature = std::make_shared<const Signature>(Allreduce({4}));
    const auto slot = table.Assign({id, signature}, sequence, retired_, names_);
    names_.Release(id);
    return slot;
  }

  NameTable names_;
  std::vector<uint32_t> retired_;
};

TEST_F(SlotTableTest, TakesTheLeastRecentlyUsedSlot) {
  SlotTable table(2);
  const auto a = Assign(table, "a", 1);
  const auto b = Assign(table, "b", 2);
  table.Touch(*a, 3);
  const auto c = Assign(table, "c", 4);
  EXPECT_EQ(retired_, std::vector<uint32_t>{*b});
  EXPECT_NE(c, b);
  EXPECT_NE(c, a);
}

TEST_F(SlotTableTest, NeverTakesASlotThatTheEntryItselfUses) {
  SlotTable table(1);
  const auto a = Assign(table, "a", 1);
  table.Touch(*a, 2);
  EXPECT_FALSE(Assign(table, "b", 2));
  EXPECT_TRUE(Assign(table, "b", 3));
}

TEST_F(SlotTableTest, UnderstandsHitsOnARetiredSlotUntilAllHaveAppliedIt) {
  SlotTable table(1);
  const auto a = Assign(table, "a", 1);
  EXPECT_EQ(table.Meaning(*a, 0), nullptr);  // not known to the member yet
  const auto b = Assign(table, "b", 5);
  ASSERT_NE(table.Meaning(*a, 4), nullptr);
  EXPECT_EQ(names_.Text(table.Meaning(*a, 4)->name), "a");
  EXPECT_EQ(table.Meaning(*a, 5), nullptr);
  table.Release(4, names_);
  EXPECT_FALSE(Assign(table, "c", 6));  // no number is free, and none is retired needlessly
  EXPECT_TRUE(retired_.empty());
  EXPECT_NE(table.Meaning(*b, 5), nullptr);
  table.Release(5, names_);
  EXPECT_EQ(names_.Find("a"), kNoName);
  EXPECT_EQ(Assign(table, "c", 6), a);
}

TEST_F(SlotTableTest, WithoutCapacityNothingIsCached) {
  SlotTable table(0);
  EXPECT_FALSE(Assign(table, "a", 1));
}

TEST(NameTable, CountsReferencesAndGivesIdsAgain) {
  NameTable names;
  const NameId a = names.Acquire("a");
  EXPECT_EQ(names.Acquire("a"), a);
  names.Release(a);
  EXPECT_EQ(names.Find("a"), a);
  names.Release(a);
  EXPECT_EQ(names.Find("a"), kNoName);
  EXPECT_EQ(names.Acquire("b"), a);
  EXPECT_EQ(names.Text(a), "b");
  names.Release(kNoName);
  EXPECT_EQ(names.Text(kNoName), "");
}

}  // namespace
}  // namespace horoscale
