#include "runtime/json.h"

#include <gtest/gtest.h>

namespace horoscale {
namespace {

TEST(Json, TextIsQuoted) {
  EXPECT_EQ(JsonString("plain"), "\"plain\"");
  EXPECT_EQ(JsonString("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\u000a\\u0001\"");
}

TEST(Json, Objects) {
  EXPECT_EQ(JsonObject().Build(), "{}");
  EXPECT_EQ(JsonObject().Add("n", 3).Add("t", "x").Add("b", true).Add("f", 0.5).Build(),
            "{\"n\": 3, \"t\": \"x\", \"b\": true, \"f\": 0.5}");
  EXPECT_EQ(JsonObject().AddJson("o", JsonObject().Add("u", uint64_t{1} << 63).Build()).Build(),
            "{\"o\": {\"u\": 9223372036854775808}}");
}

}  // namespace
}  // namespace horoscale
