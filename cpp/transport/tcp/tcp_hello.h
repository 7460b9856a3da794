// TcpHello: what the connecting rank tells first on an authenticated stream between hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "base/status.h"
#include "base/wire_version.h"

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

// What came from `address` (for errors) at a rank that knows itself and who may connect to it. The
// rank and the stream of the result are among the expected ones.
Result<TcpHello> DecodeTcpHello(std::span<const std::byte, sizeof(TcpHello)> bytes,
                                const TcpHello& own, const std::set<int>& expected,
                                const std::string& address);

}  // namespace horoscale
