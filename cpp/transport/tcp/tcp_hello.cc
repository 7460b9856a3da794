#include "transport/tcp/tcp_hello.h"

#include <cstring>

namespace horoscale {

Result<TcpHello> DecodeTcpHello(std::span<const std::byte, sizeof(TcpHello)> bytes,
                                const TcpHello& own, const std::set<int>& expected,
                                const std::string& address) {
  TcpHello hello;
  std::memcpy(&hello, bytes.data(), sizeof(hello));
  const std::string me = "rank " + std::to_string(own.rank);
  if (hello.magic != own.magic) {
    return Status::Protocol(address + " sent no hello of horoscale");
  }
  if (hello.version != own.version) {
    return Status::Protocol(
        "rank " + std::to_string(hello.rank) + " at " + address + " speaks version " +
        std::to_string(hello.version) + " of horoscale's protocol between ranks, " + me +
        " version " + std::to_string(own.version) + ": install the same horoscale for all ranks");
  }
  if (!expected.contains(hello.rank)) {
    return Status::Protocol("a process at " + address + " that says it is rank " +
                            std::to_string(hello.rank) + " connected to " + me);
  }
  if (hello.data_streams != own.data_streams || hello.stream > own.data_streams) {
    return Status::InvalidArgument("rank " + std::to_string(hello.rank) + " has " +
                                   std::to_string(hello.data_streams) + " TCP streams for data, " +
                                   me + " has " + std::to_string(own.data_streams) +
                                   ": give all ranks the same TCP_STREAMS");
  }
  return hello;
}

}  // namespace horoscale
