// Which handler gets SIGUSR2.
#include "platform/state_signal.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace horoscale {
namespace {

class StateSignalTest : public ::testing::Test {
 protected:
  StateSignalTest() { sigaction(SIGUSR2, nullptr, &before_); }
  ~StateSignalTest() override { sigaction(SIGUSR2, &before_, nullptr); }

 private:
  struct sigaction before_;
};

TEST_F(StateSignalTest, RequestsAreCounted) {
  signal(SIGUSR2, SIG_DFL);
  ASSERT_TRUE(TakeStateSignal());
  EXPECT_TRUE(TakeStateSignal()) << "it has it already";
  const uint32_t before = StateRequests();
  raise(SIGUSR2);
  EXPECT_EQ(StateRequests(), before + 1);
}

int g_seen = 0;

TEST_F(StateSignalTest, AHandlerOfTheUserStays) {
  g_seen = 0;
  signal(SIGUSR2, [](int) { ++g_seen; });
  EXPECT_FALSE(TakeStateSignal());
  raise(SIGUSR2);
  EXPECT_EQ(g_seen, 1);
}

TEST_F(StateSignalTest, WhoIgnoresTheSignalGoesOnToDoSo) {
  signal(SIGUSR2, SIG_IGN);
  EXPECT_FALSE(TakeStateSignal());
  raise(SIGUSR2);
}

}  // namespace
}  // namespace horoscale
