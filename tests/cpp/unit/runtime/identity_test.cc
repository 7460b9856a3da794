#include "runtime/identity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>

namespace horoscale {
namespace {

constexpr char kSecret[] = "b7e0c1d2a3948576b7e0c1d2a3948576";

using Variables = std::map<std::string, std::string, std::less<>>;

VariableLookup Fake(Variables values) {
  return [values = std::move(values)](std::string_view name) -> std::optional<EnvironmentVariable> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return EnvironmentVariable{"HOROSCALE_" + found->first, found->second};
  };
}

TEST(Identity, WithNothingAtAllItIsOneRankOfOne) {
  const auto identity = ReadIdentity({}, Fake({}));
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(identity->rank, 0);
  EXPECT_EQ(identity->size, 1);
  EXPECT_FALSE(identity->serve);
}

TEST(Identity, ComesFromTheVariables) {
  const auto identity = ReadIdentity(
      {}, Fake({{"RANK", "0"}, {"SIZE", "4"}, {"RENDEZVOUS", "10.0.0.1:99"}, {"SECRET", kSecret}}));
  ASSERT_TRUE(identity.ok()) << identity.status().message();
  EXPECT_EQ(identity->size, 4);
  EXPECT_EQ(identity->rendezvous, (HostPort{"10.0.0.1", 99}));
  EXPECT_EQ(identity->secret, kSecret);
  EXPECT_TRUE(identity->serve);
}

TEST(Identity, OptionsComeBeforeVariables) {
  JobOptions options;
  options.rank = 1;
  options.size = 2;
  options.rendezvous = "[::1]:7";
  options.secret = "another 9 Secret of Random enough Letters";
  const auto identity = ReadIdentity(
      options, Fake({{"RANK", "0"}, {"SIZE", "4"}, {"RENDEZVOUS", "x:1"}, {"SECRET", kSecret}}));
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(identity->rank, 1);
  EXPECT_EQ(identity->rendezvous.host, "::1");
  EXPECT_EQ(identity->secret, options.secret);
  EXPECT_FALSE(identity->serve);
}

TEST(Identity, RankZeroServesWhereverItTakesPart) {
  const auto serves = [](const char* rank, std::vector<int> ranks) {
    JobOptions options;
    options.ranks = std::move(ranks);
    const auto identity = ReadIdentity(
        options, Fake({{"RANK", rank}, {"SIZE", "4"}, {"RENDEZVOUS", "h:9"}, {"SECRET", kSecret}}));
    return identity.ok() && identity->serve;
  };
  EXPECT_TRUE(serves("0", {2, 0}));
  EXPECT_FALSE(serves("2", {2, 0}));
  EXPECT_TRUE(serves("2", {2, 1}));
  EXPECT_FALSE(serves("1", {2, 1}));
}

TEST(Identity, ALaunchersStoreIsNotServedAgain) {
  const auto identity = ReadIdentity({}, Fake({{"RANK", "0"},
                                               {"SIZE", "2"},
                                               {"RENDEZVOUS", "127.0.0.1:9"},
                                               {"RENDEZVOUS_SERVED", "1"}}));
  ASSERT_TRUE(identity.ok());
  EXPECT_FALSE(identity->serve);
}

struct Wrong {
  const char* what;
  Variables variables;
  const char* named;  // must be in the message
};

class WrongIdentity : public ::testing::TestWithParam<Wrong> {};

INSTANTIATE_TEST_SUITE_P(
    All, WrongIdentity,
    ::testing::Values(
        Wrong{"NotANumber", {{"RANK", "one"}, {"SIZE", "2"}}, "HOROSCALE_RANK"},
        Wrong{"Negative", {{"RANK", "-1"}, {"SIZE", "2"}}, "HOROSCALE_RANK"},
        Wrong{"NoRanks", {{"RANK", "0"}, {"SIZE", "0"}}, "HOROSCALE_SIZE"},
        Wrong{"OnlyOneOfThem", {{"RANK", "0"}}, "HOROSCALE_SIZE"},
        Wrong{"OutOfRange", {{"RANK", "2"}, {"SIZE", "2"}}, "out of range"},
        Wrong{"NoRendezvous", {{"RANK", "0"}, {"SIZE", "2"}}, "HOROSCALE_RENDEZVOUS"},
        Wrong{"NoPort",
              {{"RANK", "0"}, {"SIZE", "2"}, {"RENDEZVOUS", "host"}},
              "HOROSCALE_RENDEZVOUS: invalid address 'host': the port is missing"},
        Wrong{"NoSecretOffLoopback",
              {{"RANK", "0"}, {"SIZE", "2"}, {"RENDEZVOUS", "10.1.1.1:5"}},
              "HOROSCALE_SECRET"},
        Wrong{"EmptySecretOffLoopback",
              {{"RANK", "0"}, {"SIZE", "2"}, {"RENDEZVOUS", "10.1.1.1:5"}, {"SECRET", ""}},
              "HOROSCALE_SECRET"},
        Wrong{"ANameThatBeginsLikeLoopback",
              {{"RANK", "0"}, {"SIZE", "2"}, {"RENDEZVOUS", "127.example.invalid:5"}},
              "HOROSCALE_SECRET"},
        Wrong{"WeakSecret",
              {{"RANK", "0"}, {"SIZE", "2"}, {"RENDEZVOUS", "10.1.1.1:5"}, {"SECRET", "x"}},
              "HOROSCALE_SECRET is too weak"},
        Wrong{"NotASwitch",
              {{"RANK", "0"}, {"SIZE", "2"}, {"RENDEZVOUS", "[::1]:5"}, {"RENDEZVOUS_SERVED", "2"}},
              "HOROSCALE_RENDEZVOUS_SERVED"},
        Wrong{"NoSuchSecretFile",
              {{"RANK", "0"}, {"SIZE", "2"}, {"RENDEZVOUS", "h:5"}, {"SECRET_FILE", "/nowhere/x"}},
              "/nowhere/x"}),
    [](const auto& test) { return test.param.what; });

TEST_P(WrongIdentity, IsAnErrorThatSaysWhatToDo) {
  const auto identity = ReadIdentity({}, Fake(GetParam().variables));
  ASSERT_FALSE(identity.ok());
  EXPECT_NE(identity.status().message().find(GetParam().named), std::string::npos)
      << identity.status().message();
}

TEST(Identity, OnLoopbackItNeedsNoSecret) {
  for (const char* rendezvous : {"127.0.0.1:5", "127.1.2.3:5", "[::1]:5", "localhost:5"}) {
    const auto identity =
        ReadIdentity({}, Fake({{"RANK", "0"}, {"SIZE", "2"}, {"RENDEZVOUS", rendezvous}}));
    ASSERT_TRUE(identity.ok()) << identity.status().message();
    EXPECT_EQ(identity->secret, "");
  }
}

TEST(Identity, ASecretFileHoldsTheSecret) {
  char path[] = "/tmp/horoscale_secret_XXXXXX";
  const int file = mkstemp(path);
  ASSERT_EQ(write(file, kSecret, strlen(kSecret)), static_cast<ssize_t>(strlen(kSecret)));
  const auto lookup =
      Fake({{"RANK", "1"}, {"SIZE", "2"}, {"RENDEZVOUS", "10.1.1.1:5"}, {"SECRET_FILE", path}});
  const auto identity = ReadIdentity({}, lookup);
  ASSERT_TRUE(identity.ok()) << identity.status().message();
  EXPECT_EQ(identity->secret, kSecret);
  ASSERT_EQ(ftruncate(file, 8), 0);
  const auto weak = ReadIdentity({}, lookup);
  ASSERT_FALSE(weak.ok());
  EXPECT_NE(weak.status().message().find(path), std::string::npos) << weak.status().message();
  close(file);
  unlink(path);
}

}  // namespace
}  // namespace horoscale
