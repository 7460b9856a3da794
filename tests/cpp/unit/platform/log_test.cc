#include "platform/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace horoscale {
namespace {

class LogTest : public ::testing::Test {
 protected:
  void TearDown() override { ConfigureLog(LogLevel::kWarning, false, -1); }

  static std::string Logged(LogLevel level, std::string_view text) {
    testing::internal::CaptureStderr();
    Log(level, text);
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, WritesRankLevelAndText) {
  ConfigureLog(LogLevel::kInfo, false, 2);
  EXPECT_EQ(Logged(LogLevel::kWarning, "slow"), "[rank 2] warning: slow\n");
  ConfigureLog(LogLevel::kInfo, false, -1);
  EXPECT_EQ(Logged(LogLevel::kInfo, "hello"), "[horoscale] info: hello\n");
}

TEST_F(LogTest, LeavesOutWhatIsBelowTheLevel) {
  ConfigureLog(LogLevel::kError, false, 0);
  EXPECT_EQ(Logged(LogLevel::kWarning, "slow"), "");
  EXPECT_TRUE(LogEnabled(LogLevel::kFatal));
  ConfigureLog(LogLevel::kOff, false, 0);
  EXPECT_EQ(Logged(LogLevel::kFatal, "gone"), "");
  EXPECT_FALSE(LogEnabled(LogLevel::kOff));
}

TEST_F(LogTest, EscapesControlCharactersAndKeepsUnicode) {
  ConfigureLog(LogLevel::kInfo, false, 0);
  const auto escaped = [](std::string_view text) {
    const std::string line = Logged(LogLevel::kInfo, text);
    EXPECT_EQ(line.substr(0, 15), "[rank 0] info: ");
    return line.substr(15);
  };
  EXPECT_EQ(escaped("a\nb\tc\x1b[31m\x7f"), "a\\nb\\tc\\x1b[31m\\x7f\n");
  EXPECT_EQ(escaped("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f\n");
  // U+009B introduces a terminal control sequence, as escape does.
  EXPECT_EQ(escaped("\xc2\x9bm"), "\\xc2\x9bm\n");
  EXPECT_EQ(escaped(std::string_view("\0", 1)), "\\x00\n");
}

TEST_F(LogTest, ShowsTheTimeWhenAsked) {
  ConfigureLog(LogLevel::kInfo, true, 1);
  EXPECT_THAT(Logged(LogLevel::kInfo, "x"),
              testing::MatchesRegex("[0-9]+-[0-9]+-[0-9]+ [0-9]+:[0-9]+:[0-9]+\\.[0-9]+ "
                                    "\\[rank 1\\] info: x\n"));
}

TEST_F(LogTest, LinesOfThreadsStayWhole) {
  ConfigureLog(LogLevel::kInfo, false, -1);
  const std::string text(1000, 'x');
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) Log(LogLevel::kInfo, text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string expected;
  for (int i = 0; i < 400; ++i) expected += "[horoscale] info: " + text + "\n";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), expected);
}

TEST_F(LogTest, LevelsHaveNames) {
  for (const LogLevel level :
       {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError,
        LogLevel::kFatal, LogLevel::kOff}) {
    EXPECT_EQ(ParseLogLevel(LogLevelName(level)), level);
  }
  EXPECT_EQ(ParseLogLevel("WARNING"), LogLevel::kWarning);
  EXPECT_FALSE(ParseLogLevel("warn").has_value());
  EXPECT_FALSE(ParseLogLevel("").has_value());
}

}  // namespace
}  // namespace horoscale
