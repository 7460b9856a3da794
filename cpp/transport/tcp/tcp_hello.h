// TcpHello: the first message of the connecting rank on a protected stream between hosts, and the
// answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/wire_version.h"
#include "platform/byte_stream.h"
#include "platform/deadline.h"

namespace horoscale {

// Sent in memory layout.
struct TcpHello {
  static constexpr uint64_t kMagic = 0x504354'4f524f48;  // "HOROTCP"
  static constexpr uint32_t kVersion = kWireVersion;

  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  int32_t rank = -1;
  uint16_t stream = 0;  // 0: control; then data
  uint16_t data_streams = 0;
  uint32_t attempt = 0;  // the sender's attempt to create this link; streams of one attempt belong
                         // together
};
static_assert(sizeof(TcpHello) == 24);

// The accepting rank's answer on the control stream.
enum class TcpAnswer : uint8_t {
  kTaken = 1,     // go on
  kCrossing = 2,  // the answering rank creates the link itself
  kLost = 3,      // no link is created with the sender: there was one already, or the sender is
                  // lost
  kMade = 4,      // after kTaken: all streams have arrived
};

// If the stream has message_keys(), they are authenticated with a tag that can't be the tag of a
// message.
Status SendTcpHello(ByteStream& stream, const TcpHello& hello, const Deadline& deadline);
Status SendTcpAnswer(ByteStream& stream, TcpAnswer answer, const Deadline& deadline);

// Reads a hello or an answer incrementally.
class TcpHelloReader {
 public:
  enum class Awaited : uint8_t { kHello, kAnswer };

  TcpHelloReader(const ByteStream& stream, Awaited awaited);
  // Returns whether it is complete; never reads more. kProtocol if it was modified in transit.
  Result<bool> Receive(ByteStream& stream);

  Result<TcpHello> Hello(const TcpHello& own, const std::set<int>& expected,
                         const std::string& address) const;
  // kProtocol if the answer is unknown.
  Result<TcpAnswer> Answer() const;

 private:
  Awaited awaited_;
  std::vector<std::byte> bytes_;  // including the tag
  size_t received_ = 0;
};

// Decodes and checks a hello from `address` (used in errors). The rank and the stream of the result
// are among the expected ones.
Result<TcpHello> DecodeTcpHello(std::span<const std::byte, sizeof(TcpHello)> bytes,
                                const TcpHello& own, const std::set<int>& expected,
                                const std::string& address);

}  // namespace horoscale
