// Ranks of different versions: every rank reports which ranks have which versions.
#include "runtime/same_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace horoscale {
namespace {

using ::testing::HasSubstr;

constexpr char kWhat[] =
    "rank 1 speaks version 5 of horoscale's protocol between ranks, rank 0 version 4: install the "
    "same version of horoscale for all ranks";

TEST(SameVersion, AllRanksFindTheSame) {
  EXPECT_TRUE(CheckSameVersion(std::vector<uint32_t>{4, 4, 4}).ok());
  EXPECT_EQ(CheckSameVersion(std::vector<uint32_t>{4, 5}).message(), kWhat);
  const Status status = CheckSameVersion(std::vector<uint32_t>{4, 3, 4, 3});
  EXPECT_EQ(status.code(), StatusCode::kProtocol);
  EXPECT_THAT(status.message(), HasSubstr("ranks 1 and 3 speak version 3"));
  EXPECT_EQ(status.detail().ranks, (std::vector<int>{1, 3}));
}

}  // namespace
}  // namespace horoscale
