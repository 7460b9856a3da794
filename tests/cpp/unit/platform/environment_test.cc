#include "platform/environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

namespace horoscale {
namespace {

class EnvironmentTest : public ::testing::Test {
 protected:
  void TearDown() override {
    unsetenv("HOROSCALE_TEST_ONLY");
    unsetenv("HOROVOD_TEST_ONLY");
  }
};

TEST_F(EnvironmentTest, IsNothingWhenNeitherIsSet) {
  EXPECT_FALSE(FindVariable("TEST_ONLY").has_value());
}

TEST_F(EnvironmentTest, PrefersOurNameAndSaysWhichOneItWas) {
  setenv("HOROVOD_TEST_ONLY", "theirs", 1);
  ASSERT_TRUE(FindVariable("TEST_ONLY").has_value());
  EXPECT_EQ(FindVariable("TEST_ONLY")->name, "HOROVOD_TEST_ONLY");
  EXPECT_EQ(FindVariable("TEST_ONLY")->value, "theirs");
  setenv("HOROSCALE_TEST_ONLY", "", 1);
  EXPECT_EQ(FindVariable("TEST_ONLY")->name, "HOROSCALE_TEST_ONLY");
  EXPECT_EQ(FindVariable("TEST_ONLY")->value, "");
}

}  // namespace
}  // namespace horoscale
