// TCP sockets, IPv4 and IPv6, with TCP_NODELAY.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "platform/deadline.h"
#include "platform/unique_fd.h"

namespace horoscale {

class TcpListener {
 public:
  // `host` is a name or an address of this machine; "0.0.0.0" and "::" are all addresses. Port 0
  // selects any free port.
  static Result<TcpListener> Create(const std::string& host, uint16_t port);

  uint16_t port() const { return port_; }
  int fd() const { return fd_.get(); }

  Result<ByteStream> Accept(const Deadline& deadline);

 private:
  TcpListener(UniqueFd fd, uint16_t port) : fd_(std::move(fd)), port_(port) {}
  UniqueFd fd_;
  uint16_t port_;
};

enum class WhenRefused {
  kFail,
  kRetry,  // until the deadline: the server or its name may not exist yet
};

// Tries every address of the host. The deadline does not limit name resolution.
Result<ByteStream> ConnectTcp(const std::string& host, uint16_t port, const Deadline& deadline,
                              WhenRefused when_refused = WhenRefused::kFail);

// Starts connecting to a numeric address. Until IsConnected() returns true, the stream may only be
// polled for writability.
Result<ByteStream> BeginConnectTcp(const std::string& address, uint16_t port);
// False while connecting; an error if connecting has failed.
Result<bool> IsConnected(const ByteStream& stream);

// Times after which the kernel closes a connection whose peer's machine does not respond. An idle
// connection is probed after idle_s, and then every interval_s. A connection with unacknowledged
// data is closed unanswered_ms after its first transmission. This may begin when the probes are
// nearly over, so both times add up: to at most 4/5 of `seconds`, for 5 s or more.
struct SilenceTimes {
  int idle_s = 1;
  int interval_s = 1;
  int probes = 1;
  unsigned unanswered_ms = 1900;
};
SilenceTimes TimesOfSilence(double seconds);

// Makes an idle connection fail if the peer's kernel does not respond for TimesOfSilence(). The
// kernel also responds for a stopped process.
void SetKeepAlive(const ByteStream& stream, double seconds);

// The same for a connection with unacknowledged data. The kernel also closes it if the peer's
// buffer is full for this long, so use it for streams that are read soon or carry little.
Status SetSilenceLimit(const ByteStream& stream, double seconds);

// Resets a connection and discards unsent data. This also works if a forked child shares the
// socket.
void Abort(const ByteStream& stream);

// Whether a numeric address, IPv4 or IPv6, is a loopback address. False for names.
bool IsLoopbackAddress(const std::string& address);
// Whether all addresses of a name, or a numeric address, are loopback addresses. False if there are
// none.
bool IsLoopbackHost(const std::string& host);

// The local address, without the port.
Result<std::string> LocalAddress(const ByteStream& stream);

// The addresses at which others may reach this machine, without loopback and link-local addresses.
// If interfaces are given, only their addresses; kInvalidArgument names a missing interface.
Result<std::vector<std::string>> MachineAddresses(std::span<const std::string> interfaces);

}  // namespace horoscale
