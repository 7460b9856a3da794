#include "rendezvous/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace horoscale {
namespace {

TEST(ParseHostPortTest, Understands) {
  EXPECT_EQ(*ParseHostPort("node7:4711"), (HostPort{"node7", 4711}));
  EXPECT_EQ(*ParseHostPort("10.0.0.7:1"), (HostPort{"10.0.0.7", 1}));
  EXPECT_EQ(*ParseHostPort("[::1]:65535"), (HostPort{"::1", 65535}));
  EXPECT_EQ(*ParseHostPort("[fe80::1%eth0]:80"), (HostPort{"fe80::1%eth0", 80}));
}

TEST(ParseHostPortTest, SaysWhatIsWrong) {
  const auto error = [](std::string_view text) {
    const Result<HostPort> parsed = ParseHostPort(text);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(parsed.status().message(), testing::HasSubstr("'" + std::string(text) + "'"));
    return parsed.status().message();
  };
  using testing::HasSubstr;
  EXPECT_THAT(error("node7"), HasSubstr("port is missing"));
  EXPECT_THAT(error(""), HasSubstr("port is missing"));
  EXPECT_THAT(error(":80"), HasSubstr("host is missing"));
  EXPECT_THAT(error("[]:80"), HasSubstr("host is missing"));
  EXPECT_THAT(error("::1:80"), HasSubstr("must be in brackets"));
  EXPECT_THAT(error("[::1]"), HasSubstr("closing bracket"));
  EXPECT_THAT(error("[::1]x:80"), HasSubstr("closing bracket"));
  EXPECT_THAT(error("a b:80"), HasSubstr("character"));
  for (const char* text : {"h:", "h:0", "h:65536", "h:-1", "h:+1", "h: 1", "h:1x", "h:0x10"}) {
    EXPECT_THAT(error(text), HasSubstr("number from 1 to 65535")) << text;
  }
}

}  // namespace
}  // namespace horoscale
