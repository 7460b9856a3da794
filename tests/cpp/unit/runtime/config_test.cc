#include "runtime/config.h"

#include <gtest/gtest.h>

#include <map>

namespace horoscale {
namespace {

VariableLookup Fake(std::map<std::string, std::string, std::less<>> values) {
  return [values = std::move(values)](std::string_view name) -> std::optional<EnvironmentVariable> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return EnvironmentVariable{"HOROSCALE_" + found->first, found->second};
  };
}

TEST(Config, DefaultsAreThoseOfTheTable) {
  const auto defaults = ReadConfig(Fake({}));
  ASSERT_TRUE(defaults.ok());
  std::map<std::string, std::string, std::less<>> table;
  for (const ConfigVariable& variable : ConfigVariables()) {
    if (variable.store != nullptr) table.emplace(variable.name, variable.default_value);
  }
  const auto written = ReadConfig(Fake(table));
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_EQ(written->fusion_threshold_bytes, defaults->fusion_threshold_bytes);
  EXPECT_EQ(written->partition_bytes, defaults->partition_bytes);
  EXPECT_EQ(written->credit_bytes, defaults->credit_bytes);
  EXPECT_EQ(written->cache_capacity, defaults->cache_capacity);
  EXPECT_EQ(written->priority_scheduling, defaults->priority_scheduling);
  EXPECT_EQ(written->stall_check, defaults->stall_check);
  EXPECT_EQ(written->stall_warning_seconds, defaults->stall_warning_seconds);
  EXPECT_EQ(written->stall_shutdown_seconds, defaults->stall_shutdown_seconds);
  EXPECT_EQ(written->start_timeout_seconds, defaults->start_timeout_seconds);
  EXPECT_EQ(written->log_level, defaults->log_level);
  EXPECT_EQ(written->log_time, defaults->log_time);
  EXPECT_EQ(written->arena_bytes, defaults->arena_bytes);
}

TEST(Config, ValuesAreTaken) {
  const auto config = ReadConfig(Fake({{"FUSION_THRESHOLD", "1024"},
                                       {"SCHEDULER", "fifo"},
                                       {"STALL_CHECK_DISABLE", "1"},
                                       {"LOG_LEVEL", "debug"},
                                       {"STALL_CHECK_TIME_SECONDS", "0.5"}}));
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->fusion_threshold_bytes, 1024);
  EXPECT_FALSE(config->priority_scheduling);
  EXPECT_FALSE(config->stall_check);
  EXPECT_EQ(config->log_level, LogLevel::kDebug);
  EXPECT_EQ(config->stall_warning_seconds, 0.5);
}

class BadValue : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

INSTANTIATE_TEST_SUITE_P(
    All, BadValue,
    ::testing::Values(std::pair("FUSION_THRESHOLD", "64MB"), std::pair("FUSION_THRESHOLD", "-1"),
                      std::pair("FUSION_THRESHOLD", "99999999999999999999"),
                      std::pair("FUSION_THRESHOLD", ""), std::pair("SCHEDULER", "lifo"),
                      std::pair("STALL_CHECK_TIME_SECONDS", "nan"),
                      std::pair("START_TIMEOUT", "soon"), std::pair("LOG_LEVEL", "loud"),
                      std::pair("DYNAMIC_PROCESS_SETS", "maybe"), std::pair("ARENA_BYTES", "100"),
                      std::pair("CYCLE_TIME", "x")));

TEST_P(BadValue, IsAnErrorThatNamesTheVariable) {
  const auto config = ReadConfig(Fake({GetParam()}));
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(config.status().message().find("HOROSCALE_" + GetParam().first), std::string::npos);
}

}  // namespace
}  // namespace horoscale
