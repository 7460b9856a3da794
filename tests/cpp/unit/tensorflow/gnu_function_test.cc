// Compiled with libstdc++, like TensorFlow.
#include "tensorflow/native/gnu_function.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>

namespace horoscale::tensorflow {
namespace {

TEST(GnuFunctionTest, CallsAndDestroysWhatIsKeptOnTheHeap) {
  auto calls = std::make_shared<int>(0);
  std::array<char, 100> large{};
  std::function<void()> source = [calls, large] { *calls += 1 + large[99]; };
  {
    const GnuFunction taken(&source);
    EXPECT_FALSE(source);
    source = nullptr;  // TensorFlow's own object is destroyed before the call
    EXPECT_EQ(calls.use_count(), 2);
    taken();
    taken();
  }
  EXPECT_EQ(*calls, 2);
  EXPECT_EQ(calls.use_count(), 1);
}

TEST(GnuFunctionTest, CallsWhatIsKeptInTheFunctionItself) {
  int calls = 0;
  std::function<void()> source = [&calls] { ++calls; };
  const GnuFunction taken(&source);
  EXPECT_FALSE(source);
  taken();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace horoscale::tensorflow
