// Links that are made at any time, by either side or by both at once.

#include "transport/tcp/tcp_link_maker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/tls_library.h"
#include "platform/wait.h"
#include "transport/tcp/tcp_door.h"

namespace horoscale {
namespace {

using ::testing::HasSubstr;

constexpr double kPatience = 20;
constexpr uint32_t kDataStreams = 2;

TcpLinkTerms TermsOf(int rank, bool encrypt = false) {
  return {rank, "7/", "secret", encrypt, 30, kDataStreams};
}

TcpDoor OpenDoor() {
  TcpDoor::Options options;
  options.loopback_only = true;
  return TcpDoor::Open(options).TakeValue();
}

std::unique_ptr<TcpLinkMaker> Start(const TcpLinkTerms& terms, TcpDoor door,
                                    std::map<int, std::string> places, bool is_starting = false) {
  auto maker =
      TcpLinkMaker::Start({terms, std::move(door.listeners), std::move(places), kPatience});
  EXPECT_TRUE(maker.ok()) << maker.status().message();
  if (!is_starting) (*maker)->EndStart();
  return maker.TakeValue();
}

// The next link to be made; none on timeout.
std::vector<TcpLinkMaker::Made> Next(TcpLinkMaker& maker, double seconds = kPatience) {
  (void)WaitForDescriptor(maker.fd(), POLLIN, Deadline::After(seconds));
  return maker.Take();
}

// Why the link to the rank, which has already been called, can't be made.
std::string WhyNot(TcpLinkMaker& maker, int rank) {
  const auto made = Next(maker);
  if (made.size() != 1) return "there are " + std::to_string(made.size()) + " answers";
  EXPECT_EQ(made[0].rank, rank);
  return made[0].failure.message();
}

// Ranks 0 and 1.
struct Pair {
  explicit Pair(bool encrypt = false, std::string second_secret = "secret",
                double silence_seconds = 30, bool is_starting = false) {
    TcpDoor doors[] = {OpenDoor(), OpenDoor()};
    const std::string places[] = {doors[0].places, doors[1].places};
    for (int rank = 0; rank < 2; ++rank) {
      TcpLinkTerms terms = TermsOf(rank, encrypt);
      terms.silence_seconds = silence_seconds;
      if (rank == 1) terms.secret = second_secret;
      makers[rank] =
          Start(terms, std::move(doors[rank]), {{1 - rank, places[1 - rank]}}, is_starting);
    }
  }
  std::unique_ptr<TcpLinkMaker> makers[2];
};

void Say(ByteStream& stream, uint8_t what) {
  const auto byte = static_cast<std::byte>(what);
  ASSERT_TRUE(stream.SendAll({&byte, 1}, Deadline::After(kPatience)).ok());
}

void ExpectToHear(ByteStream& stream, uint8_t what) {
  std::byte byte{};
  const Status got = stream.ReceiveAll({&byte, 1}, Deadline::After(kPatience));
  ASSERT_TRUE(got.ok()) << got.message();
  EXPECT_EQ(byte, static_cast<std::byte>(what));
}

// Both have the link, and streams of equal number are connected.
void ExpectOneLink(Pair& pair) {
  std::vector<TcpStreams> ends;
  for (auto& maker : pair.makers) {
    auto made = Next(*maker);
    ASSERT_EQ(made.size(), 1u);
    ASSERT_TRUE(made[0].failure.ok()) << made[0].failure.message();
    ends.push_back(std::move(made[0].streams));
    ASSERT_EQ(ends.back().size(), 1 + kDataStreams);
  }
  for (uint8_t number = 0; number <= kDataStreams; ++number) {
    Say(ends[0][number], number);
    Say(ends[1][number], static_cast<uint8_t>(number + 100));
    ExpectToHear(ends[1][number], number);
    ExpectToHear(ends[0][number], static_cast<uint8_t>(number + 100));
  }
  for (auto& maker : pair.makers) EXPECT_TRUE(maker->Take().empty()) << "made twice";
}

TEST(TcpLinkMaker, EitherSideMayCall) {
  for (const int caller : {0, 1}) {
    Pair pair;
    pair.makers[caller]->Call(1 - caller);
    ExpectOneLink(pair);
  }
}

TEST(TcpLinkMaker, CrossingCallsMakeOneLink) {
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    Pair pair;
    for (const int caller : {round % 2, 1 - round % 2}) pair.makers[caller]->Call(1 - caller);
    ExpectOneLink(pair);
    if (HasFatalFailure()) return;
  }
}

TEST(TcpLinkMaker, CrossingCallsMakeOneEncryptedLink) {
  if (!TlsLibrary::Open().ok()) GTEST_SKIP() << "there is no OpenSSL here";
  for (int round = 0; round < 10; ++round) {
    Pair pair(true);
    for (const int caller : {0, 1}) pair.makers[caller]->Call(1 - caller);
    ExpectOneLink(pair);
    if (HasFatalFailure()) return;
  }
}

TEST(TcpLinkMaker, CallingAgainChangesNothing) {
  Pair pair;
  for (int i = 0; i < 5; ++i) pair.makers[0]->Call(1);
  ExpectOneLink(pair);
  pair.makers[0]->Call(1);
  pair.makers[1]->Call(0);
  EXPECT_TRUE(Next(*pair.makers[0], 0.05).empty());
}

TEST(TcpLinkMaker, WhoIsTakenForLostIsToldSo) {
  Pair pair;
  pair.makers[0]->Forget(1);
  pair.makers[1]->Call(0);
  EXPECT_THAT(WhyNot(*pair.makers[1], 0), HasSubstr("considers this rank lost"));
}

// By then others have had time to report the cause.
TEST(TcpLinkMaker, ARankThatIsGoneIsGivenUpAfterAWhile) {
  Pair pair(false, "secret", 1);
  pair.makers[1].reset();
  pair.makers[0]->Call(1);
  EXPECT_THAT(WhyNot(*pair.makers[0], 1), HasSubstr("Connection refused"));
}

TEST(TcpLinkMaker, AStrangerInThePeersPlaceIsGivenUpAfterAWhile) {
  Pair pair(false, "guess", 1);
  pair.makers[0]->Call(1);
  EXPECT_THAT(WhyNot(*pair.makers[0], 1), HasSubstr("different secrets"));
}

// Even while strangers hold all descriptors of this process.
TEST(TcpLinkMaker, ACallWithoutADescriptorIsTriedAgainDuringTheStart) {
  Pair pair(false, "secret", 30, /*is_starting=*/true);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(STDERR_FILENO);
  ASSERT_GE(next, 0);
  close(next);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  pair.makers[0]->Call(1);
  const auto answers = Next(*pair.makers[0], 0.3);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(answers.empty()) << answers[0].failure.message();
  ExpectOneLink(pair);
}

TEST(TcpLinkMaker, ARankThatIsCrowdedIsNotGivenUp) {
  TcpListener crowded = TcpListener::Create("127.0.0.1", 0).TakeValue();
  const std::string place = "[127.0.0.1]:" + std::to_string(crowded.port()) + "\n";
  TcpLinkTerms terms = TermsOf(0);
  terms.silence_seconds = 1;
  auto maker = Start(terms, OpenDoor(), {{1, place}});
  maker->Call(1);
  const Deadline end = Deadline::After(1.5);
  while (!end.Passed()) (void)crowded.Accept(end);  // and closed
  EXPECT_TRUE(maker->Take().empty());
}

TEST(TcpLinkMaker, ACallIsForgottenWithItsRank) {
  Pair pair(false, "secret", 1);
  pair.makers[1].reset();
  pair.makers[0]->Call(1);
  pair.makers[0]->Forget(1);
  EXPECT_TRUE(Next(*pair.makers[0], 0.5).empty());
}

// The kernel answers for a stopped process.
TEST(TcpLinkMaker, StopDoesNotWaitForACall) {
  TcpDoor silent = OpenDoor();
  auto maker = Start(TermsOf(0), OpenDoor(), {{1, silent.places}});
  maker->Call(1);
  const double before = MonotonicSeconds();
  maker->Stop();
  EXPECT_LT(MonotonicSeconds() - before, 1);
}

// A peer implemented by the test.
class CallerByHand : public ::testing::Test {
 protected:
  void SetUp() override {
    TcpDoor door = OpenDoor();
    port_ = door.listeners[0].port();
    maker_ = Start(TermsOf(0), std::move(door), {{1, "[127.0.0.1]:1\n"}});
  }
  ByteStream Hello(uint16_t number, uint32_t attempt) {
    const Deadline deadline = Deadline::After(kPatience);
    ByteStream stream = ConnectTcp("127.0.0.1", port_, deadline).TakeValue();
    const Status proved = AuthenticateToServer(stream, "secret", TermsOf(1).AuthContext(0),
                                               Protection::kAuthenticated, deadline);
    EXPECT_TRUE(proved.ok()) << proved.message();
    EXPECT_TRUE(SendTcpHello(stream, TermsOf(1).Hello(number, attempt), deadline).ok());
    return stream;
  }
  // 0: the stream is closed instead.
  static int AnswerOn(ByteStream& stream) {
    TcpHelloReader reader(stream, TcpHelloReader::Awaited::kAnswer);
    while (true) {
      const Result<bool> heard = reader.Receive(stream);
      if (!heard.ok()) return 0;
      if (*heard) return static_cast<int>(*reader.Answer());
      if (!WaitForDescriptor(stream.fd(), POLLIN, Deadline::After(kPatience)).ok()) return -1;
    }
  }

  uint16_t port_ = 0;
  std::unique_ptr<TcpLinkMaker> maker_;
};

TEST_F(CallerByHand, StreamsOfDifferentAttemptsAreNoLink) {
  ByteStream control = Hello(0, 2);
  EXPECT_EQ(AnswerOn(control), static_cast<int>(TcpAnswer::kTaken));
  EXPECT_TRUE(maker_->IsComing(1));
  ByteStream late = Hello(0, 1);
  EXPECT_EQ(AnswerOn(late), 0) << "of an attempt that was given up";
  std::vector<ByteStream> data;
  for (const uint32_t attempt : {1u, 1u, 2u}) data.push_back(Hello(1, attempt));
  EXPECT_TRUE(maker_->Take().empty());
  data.push_back(Hello(2, 2));
  EXPECT_EQ(AnswerOn(control), static_cast<int>(TcpAnswer::kMade));
  const auto made = Next(*maker_);
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].streams.size(), 1 + kDataStreams);
  EXPECT_FALSE(maker_->IsComing(1));
  ByteStream again = Hello(0, 3);
  EXPECT_EQ(AnswerOn(again), static_cast<int>(TcpAnswer::kLost)) << "there was a link";
}

TEST_F(CallerByHand, ANewAttemptReplacesTheOneBefore) {
  ByteStream first = Hello(0, 1);
  EXPECT_EQ(AnswerOn(first), static_cast<int>(TcpAnswer::kTaken));
  ByteStream second = Hello(0, 2);
  EXPECT_EQ(AnswerOn(second), static_cast<int>(TcpAnswer::kTaken));
  std::vector<ByteStream> data;
  for (const uint16_t number : {1, 2}) data.push_back(Hello(number, 2));
  EXPECT_EQ(AnswerOn(second), static_cast<int>(TcpAnswer::kMade));
  EXPECT_EQ(Next(*maker_).size(), 1u);
}

TEST_F(CallerByHand, ACallerThatEndsIsNotComingAnyMore) {
  {
    ByteStream control = Hello(0, 1);
    EXPECT_EQ(AnswerOn(control), static_cast<int>(TcpAnswer::kTaken));
  }
  const Deadline deadline = Deadline::After(kPatience);
  while (maker_->IsComing(1) && !deadline.Passed()) std::this_thread::yield();
  EXPECT_FALSE(maker_->IsComing(1));
}

}  // namespace
}  // namespace horoscale
