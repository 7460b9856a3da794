// TcpHello: what the connecting rank tells first on a protected stream between hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>

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
  uint32_t stream = 0;  // 0: control; then data
  uint32_t data_streams = 0;
};
static_assert(sizeof(TcpHello) == 24);

// Authenticated with the stream's message_keys(), where it has such: by a tag of its own, which no
// message's can be.
Status SendTcpHello(ByteStream& stream, const TcpHello& hello, const Deadline& deadline);
Result<TcpHello> ReceiveTcpHello(ByteStream& stream, const TcpHello& own,
                                 const std::set<int>& expected, const Deadline& deadline);

// What came from `address` (for errors) at a rank that knows itself and who may connect to it. The
// rank and the stream of the result are among the expected ones.
Result<TcpHello> DecodeTcpHello(std::span<const std::byte, sizeof(TcpHello)> bytes,
                                const TcpHello& own, const std::set<int>& expected,
                                const std::string& address);

}  // namespace horoscale
