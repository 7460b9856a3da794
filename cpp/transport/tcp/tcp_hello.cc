#include "transport/tcp/tcp_hello.h"

#include <array>
#include <cstring>
#include <limits>

#include "rendezvous/seal.h"

namespace horoscale {
namespace {

// Before the first message, which has the number 0.
Seal HelloSeal(const MessageKey& key) { return Seal(key, std::numeric_limits<uint64_t>::max()); }

}  // namespace

Status SendTcpHello(ByteStream& stream, const TcpHello& hello, const Deadline& deadline) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(&hello, 1));
  HS_RETURN_IF_ERROR(stream.SendAll(bytes, deadline));
  if (!stream.message_keys()) return Status::Ok();
  return stream.SendAll(HelloSeal(stream.message_keys()->send).Next(bytes), deadline);
}

Result<TcpHello> ReceiveTcpHello(ByteStream& stream, const TcpHello& own,
                                 const std::set<int>& expected, const Deadline& deadline) {
  std::array<std::byte, sizeof(TcpHello)> bytes;
  HS_RETURN_IF_ERROR(stream.ReceiveAll(bytes, deadline));
  if (stream.message_keys()) {
    SipTag tag;
    HS_RETURN_IF_ERROR(stream.ReceiveAll(tag, deadline));
    const Status checked = HelloSeal(stream.message_keys()->receive).Check(bytes, tag);
    if (!checked.ok()) return Status::Protocol("from " + stream.peer() + ": " + checked.message());
  }
  return DecodeTcpHello(bytes, own, expected, stream.peer());
}

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
