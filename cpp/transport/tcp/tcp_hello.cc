#include "transport/tcp/tcp_hello.h"

#include <array>
#include <cstring>
#include <limits>

#include "rendezvous/seal.h"

namespace horoscale {
namespace {

// Before the first message, which has the number 0.
constexpr uint64_t kHelloNumber = std::numeric_limits<uint64_t>::max();
// The number of an answer: kMade follows another answer.
uint64_t NumberOf(TcpAnswer answer) { return kHelloNumber - (answer == TcpAnswer::kMade ? 1 : 0); }

Status SendTagged(ByteStream& stream, std::span<const std::byte> bytes, uint64_t number,
                  const Deadline& deadline) {
  std::vector<std::byte> all(bytes.begin(), bytes.end());
  if (stream.message_keys()) {
    const SipTag tag = Seal(stream.message_keys()->send, number).Next(bytes);
    all.insert(all.end(), tag.begin(), tag.end());
  }
  return stream.SendAll(all, deadline);
}

}  // namespace

Status SendTcpHello(ByteStream& stream, const TcpHello& hello, const Deadline& deadline) {
  return SendTagged(stream, std::as_bytes(std::span(&hello, 1)), kHelloNumber, deadline);
}

Status SendTcpAnswer(ByteStream& stream, TcpAnswer answer, const Deadline& deadline) {
  return SendTagged(stream, std::as_bytes(std::span(&answer, 1)), NumberOf(answer), deadline);
}

TcpHelloReader::TcpHelloReader(const ByteStream& stream, Awaited awaited)
    : awaited_(awaited),
      bytes_((awaited == Awaited::kHello ? sizeof(TcpHello) : sizeof(TcpAnswer)) +
             (stream.message_keys() ? Seal::kTagBytes : 0)) {}

Result<bool> TcpHelloReader::Receive(ByteStream& stream) {
  while (received_ < bytes_.size()) {
    const Result<size_t> got = stream.ReceiveSome(std::span(bytes_).subspan(received_));
    if (!got.ok()) return got.status();
    if (*got == 0) return false;
    received_ += *got;
  }
  if (!stream.message_keys()) return true;
  const std::span<const std::byte> said = std::span(bytes_).first(bytes_.size() - Seal::kTagBytes);
  const auto tag = std::span(bytes_).last<Seal::kTagBytes>();
  const uint64_t number =
      awaited_ == Awaited::kHello ? kHelloNumber : NumberOf(static_cast<TcpAnswer>(said.front()));
  const Status checked = Seal(stream.message_keys()->receive, number).Check(said, tag);
  if (!checked.ok()) return Status::Protocol("from " + stream.peer() + ": " + checked.message());
  return true;
}

Result<TcpHello> TcpHelloReader::Hello(const TcpHello& own, const std::set<int>& expected,
                                       const std::string& address) const {
  return DecodeTcpHello(std::span(bytes_).first<sizeof(TcpHello)>(), own, expected, address);
}

Result<TcpAnswer> TcpHelloReader::Answer() const {
  const auto answer = static_cast<TcpAnswer>(bytes_.front());
  if (answer >= TcpAnswer::kTaken && answer <= TcpAnswer::kMade) return answer;
  return Status::Protocol("it sent an unknown answer");
}

Result<TcpHello> DecodeTcpHello(std::span<const std::byte, sizeof(TcpHello)> bytes,
                                const TcpHello& own, const std::set<int>& expected,
                                const std::string& address) {
  TcpHello hello;
  std::memcpy(&hello, bytes.data(), sizeof(hello));
  const std::string me = "rank " + std::to_string(own.rank);
  if (hello.magic != own.magic) {
    return Status::Protocol(address + " did not send a horoscale hello");
  }
  if (hello.version != own.version) {
    return Status::Protocol("rank " + std::to_string(hello.rank) + " at " + address +
                            " speaks version " + std::to_string(hello.version) +
                            " of horoscale's protocol between ranks, " + me + " version " +
                            std::to_string(own.version) +
                            ": install the same version of horoscale for all ranks");
  }
  if (!expected.contains(hello.rank)) {
    return Status::Protocol("a process at " + address + " that claims to be rank " +
                            std::to_string(hello.rank) + " connected to " + me);
  }
  if (hello.data_streams != own.data_streams || hello.stream > own.data_streams) {
    return Status::InvalidArgument("rank " + std::to_string(hello.rank) + " has " +
                                   std::to_string(hello.data_streams) + " TCP streams for data, " +
                                   me + " has " + std::to_string(own.data_streams) +
                                   ": set the same TCP_STREAMS for all ranks");
  }
  return hello;
}

}  // namespace horoscale
