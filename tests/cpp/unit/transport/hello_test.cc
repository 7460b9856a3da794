// The errors of ranks of different versions that make a link.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <span>
#include <string>

#include "platform/unix_socket.h"
#include "transport/shm/link.h"
#include "transport/tcp/tcp_hello.h"

namespace horoscale {
namespace {

using ::testing::HasSubstr;

TEST(TcpHello, ARankOfAnotherVersionIsNamed) {
  TcpHello other;
  other.rank = 3;
  other.version = kWireVersion + 1;
  other.data_streams = 1;
  TcpHello own;
  own.rank = 1;
  own.data_streams = 1;
  std::array<std::byte, sizeof(TcpHello)> bytes;
  std::memcpy(bytes.data(), &other, sizeof(other));
  const Status status = DecodeTcpHello(bytes, own, {3}, "10.0.0.7:4711").status();
  EXPECT_EQ(status.code(), StatusCode::kProtocol);
  EXPECT_THAT(
      status.message(),
      HasSubstr("rank 3 at 10.0.0.7:4711 speaks version " + std::to_string(kWireVersion + 1) +
                " of horoscale's protocol between ranks, rank 1 version " +
                std::to_string(kWireVersion)));
  other.version = kWireVersion;
  std::memcpy(bytes.data(), &other, sizeof(other));
  EXPECT_TRUE(DecodeTcpHello(bytes, own, {3}, "10.0.0.7:4711").ok());
}

// Both sides send first, then read.
TEST(LinkHello, BothSidesNameTheRanksAndTheirVersions) {
  auto [near, far] = UnixPair().TakeValue();
  const Deadline deadline = Deadline::After(30);
  LinkHello first;
  first.rank = 0;
  LinkHello second;
  second.rank = 1;
  second.version = kWireVersion + 1;
  ASSERT_TRUE(SendHello(near, first, deadline).ok());
  ASSERT_TRUE(SendHello(far, second, deadline).ok());
  const std::string ours = std::to_string(kWireVersion);
  const std::string theirs = std::to_string(kWireVersion + 1);
  EXPECT_THAT(ReceiveHello(near, first, deadline).status().message(),
              HasSubstr("rank 1 speaks version " + theirs +
                        " of horoscale's protocol between ranks, rank 0 version " + ours));
  EXPECT_THAT(ReceiveHello(far, second, deadline).status().message(),
              HasSubstr("rank 0 speaks version " + ours +
                        " of horoscale's protocol between ranks, rank 1 version " + theirs));
}

}  // namespace
}  // namespace horoscale
