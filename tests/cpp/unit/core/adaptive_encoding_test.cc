#include "core/adaptive_encoding.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace horoscale {
namespace {

constexpr double kMegabit = 1e6 / 8;

NetworkState Network(double megabits) {
  return {
      .bytes_per_second = megabits * kMegabit, .latency_seconds = 0.2e-3, .coding_per_second = 2e9};
}

AdaptiveTensor Tensor(double most_error, int priority = 0, int64_t elements = 1 << 20) {
  return {.elements = elements,
          .dtype = DataType::kFloat32,
          .most_error = most_error,
          .priority = priority,
          .errors = {}};
}

std::vector<std::string> Names(const std::vector<size_t>& levels) {
  std::vector<std::string> names;
  for (const size_t level : levels) names.emplace_back(Name(kEncodingLevels[level].kind));
  return names;
}

TEST(AdaptiveEncodingTest, ATensorIsCompressedAsMuchAsItTakes) {
  struct Case {
    const char* what;
    double megabits;
    double most_error;
    double seconds;
    const char* chosen;
  };
  // 4 MiB take 336 ms at 100 Mbit/s.
  const Case cases[] = {
      {"nothing to hide it, but a fast network", 10'000, 10, 0, "none"},
      {"it is hidden as it is", 100, 10, 0.5, "none"},
      {"half of it is hidden", 100, 10, 0.18, "bfloat16"},
      {"a quarter", 100, 10, 0.1, "int8"},
      {"an eighth", 100, 10, 0.05, "int4"},
      {"a 25th", 100, 10, 0.016, "onebit"},
      {"nothing", 100, 10, 0, "topk"},
      {"the bound allows all but the largest", 100, 2, 0, "onebit"},
      {"the bound allows integers", 100, 0.2, 0, "int4"},
      {"the bound allows 8 bits", 100, 0.1, 0, "int8"},
      {"the bound allows 16 bits", 100, 0.01, 0, "bfloat16"},
      {"the bound allows nothing", 100, 0.001, 0, "none"},
      {"nothing is known of the network", 0, 10, 0, "none"},
  };
  for (const Case& one : cases) {
    const AdaptiveTensor tensor = Tensor(one.most_error);
    EXPECT_EQ(Names(ChooseLevels({&tensor, 1}, Network(one.megabits), one.seconds)),
              std::vector<std::string>{one.chosen})
        << one.what;
  }
}

TEST(AdaptiveEncodingTest, WhatIsNeededFirstIsCompressedFirst) {
  const std::vector<AdaptiveTensor> tensors = {Tensor(10, 1), Tensor(10, 3), Tensor(10, 2)};
  const NetworkState network = Network(100);
  EXPECT_EQ(Names(ChooseLevels(tensors, network, 0.9)),
            (std::vector<std::string>{"none", "bfloat16", "none"}));
  EXPECT_EQ(Names(ChooseLevels(tensors, network, 0.7)),
            (std::vector<std::string>{"none", "bfloat16", "bfloat16"}));
  EXPECT_EQ(Names(ChooseLevels(tensors, network, 0.45)),
            (std::vector<std::string>{"bfloat16", "int8", "bfloat16"}));
}

TEST(AdaptiveEncodingTest, WhatTheLatencyDelaysIsNotCompressed) {
  const AdaptiveTensor small = Tensor(10, 0, 256);
  EXPECT_EQ(Names(ChooseLevels({&small, 1}, Network(100), 0)), std::vector<std::string>{"none"});
}

TEST(AdaptiveEncodingTest, SlowEncodersAreNotUsed) {
  const AdaptiveTensor tensor = Tensor(10);
  NetworkState network = Network(1000);
  network.coding_per_second = 100e6;
  EXPECT_EQ(Names(ChooseLevels({&tensor, 1}, network, 0)), std::vector<std::string>{"none"});
}

TEST(AdaptiveEncodingTest, MeasuredErrorsCount) {
  AdaptiveTensor tensor = Tensor(0.1);
  tensor.errors.Measure(2, 0.12);
  EXPECT_EQ(Names(ChooseLevels({&tensor, 1}, Network(100), 0)),
            std::vector<std::string>{"bfloat16"});
  // 4 bits lose about 18 times as much as 8 bits do.
  tensor.errors.Measure(2, 0.004);
  EXPECT_EQ(Names(ChooseLevels({&tensor, 1}, Network(100), 0)), std::vector<std::string>{"int4"});
  tensor.errors.Measure(3, 0.11);
  EXPECT_EQ(Names(ChooseLevels({&tensor, 1}, Network(100), 0)), std::vector<std::string>{"int8"});
  // According to the measurements of both, they still lose too much.
  tensor.errors.Measure(2, 0.0038);
  EXPECT_EQ(Names(ChooseLevels({&tensor, 1}, Network(100), 0)), std::vector<std::string>{"int8"});
  tensor.errors.Measure(2, 0.003);
  EXPECT_EQ(Names(ChooseLevels({&tensor, 1}, Network(100), 0)), std::vector<std::string>{"int4"});
}

}  // namespace
}  // namespace horoscale
