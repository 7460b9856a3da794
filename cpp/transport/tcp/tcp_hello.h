// TcpHello: what the connecting rank tells first on a protected stream between hosts, and the
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

// The bytes are the wire's.
struct TcpHello {
  static constexpr uint64_t kMagic = 0x504354'4f524f48;  // "HOROTCP"
  static constexpr uint32_t kVersion = kWireVersion;

  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  int32_t rank = -1;
  uint16_t stream = 0;  // 0: control; then data
  uint16_t data_streams = 0;
  uint32_t attempt = 0;  // of the sender to make this link: streams of one attempt belong together
};
static_assert(sizeof(TcpHello) == 24);

// What the rank that was connected to answers on the control stream.
enum class TcpAnswer : uint8_t {
  kTaken = 1,     // go on
  kCrossing = 2,  // the rank that answers makes the link itself
  kLost = 3,      // nothing is made with the sender any more: there was a link, or it is lost
  kMade = 4,      // after kTaken: all streams have come
};

// Authenticated with the stream's message_keys(), where it has such: by a tag of its own, which no
// message's can be.
Status SendTcpHello(ByteStream& stream, const TcpHello& hello, const Deadline& deadline);
Status SendTcpAnswer(ByteStream& stream, TcpAnswer answer, const Deadline& deadline);

// What one of these two says, read as it comes.
class TcpHelloReader {
 public:
  enum class Awaited : uint8_t { kHello, kAnswer };

  TcpHelloReader(const ByteStream& stream, Awaited awaited);
  // Whether it is there; never more is read. kProtocol if it was changed on the way.
  Result<bool> Receive(ByteStream& stream);

  Result<TcpHello> Hello(const TcpHello& own, const std::set<int>& expected,
                         const std::string& address) const;
  // kProtocol if it is none of these.
  Result<TcpAnswer> Answer() const;

 private:
  Awaited awaited_;
  std::vector<std::byte> bytes_;  // with the tag
  size_t received_ = 0;
};

// What came from `address` (for errors) at a rank that knows itself and who may connect to it. The
// rank and the stream of the result are among the expected ones.
Result<TcpHello> DecodeTcpHello(std::span<const std::byte, sizeof(TcpHello)> bytes,
                                const TcpHello& own, const std::set<int>& expected,
                                const std::string& address);

}  // namespace horoscale
