// TCP sockets, IPv4 and IPv6. Their streams send at once (TCP_NODELAY).
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
  // `host` is a name or an address of this machine ("0.0.0.0" and "::" are all of them); port 0
  // takes any that is free.
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
  kRetry,  // until the deadline: the server, or its name, may not be there yet
};

// Tries every address of the host. The deadline doesn't bound the resolution of the name.
Result<ByteStream> ConnectTcp(const std::string& host, uint16_t port, const Deadline& deadline,
                              WhenRefused when_refused = WhenRefused::kFail);

// Begins to connect to a numeric address. Nothing may be done with the stream but to wait until it
// is writable, and to ask whether it IsConnected().
Result<ByteStream> BeginConnectTcp(const std::string& address, uint16_t port);
// False while that is not decided; why not, if it has failed.
Result<bool> IsConnected(const ByteStream& stream);

// When the kernel gives a connection up whose peer's machine does not answer. An idle one: after
// idle_s, and each of the probes after another interval_s. One with something to send:
// unanswered_ms after it was sent first. That may begin when the probes are nearly over, so that
// silence lasts as long as both together: at most 4/5 of `seconds`, for 5 s or more.
struct SilenceTimes {
  int idle_s = 1;
  int interval_s = 1;
  int probes = 1;
  unsigned unanswered_ms = 1900;
};
SilenceTimes TimesOfSilence(double seconds);

// Ends an idle connection with an error when the peer's kernel has not answered for
// TimesOfSilence(). A process that is stopped still answers.
void SetKeepAlive(const ByteStream& stream, double seconds);

// The same for one that has something to send. The kernel also ends it when the peer's buffer has
// been full for so long: it is for streams that are read soon or carry little.
Status SetSilenceLimit(const ByteStream& stream, double seconds);

// Gives a connection up, with all that has not been sent, and tells the peer if it still hears us.
// Holds as well where a forked child has the socket too.
void Abort(const ByteStream& stream);

// Whether a numeric address, IPv4 or IPv6, never leaves the machine. No name is one.
bool IsLoopbackAddress(const std::string& address);
// Whether all addresses of a name, or an address, are such. False if it has none.
bool IsLoopbackHost(const std::string& host);

// The address of our side, without the port.
Result<std::string> LocalAddress(const ByteStream& stream);

// Addresses of this machine that others may reach it by, without loopback and link-local ones; of
// the given interfaces only if any are given. kInvalidArgument names an interface that isn't there.
Result<std::vector<std::string>> MachineAddresses(std::span<const std::string> interfaces);

}  // namespace horoscale
