#include "platform/tcp_socket.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <set>

#include "platform/wait.h"

namespace horoscale {
namespace {

constexpr double kRetrySeconds = 0.02;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, FreeAddresses>;

// "host:port", with brackets around an IPv6 address.
std::string JoinHostPort(const std::string& host, const std::string& port) {
  return host.find(':') == std::string::npos ? host + ":" + port : "[" + host + "]:" + port;
}

Result<AddressList> Resolve(const std::string& host, uint16_t port, int flags = 0) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error == EAI_SYSTEM) return Status::System("resolving host '" + host + "'", errno);
  if (error != 0) {
    return Status(StatusCode::kSystem, "resolving host '" + host + "': " + gai_strerror(error));
  }
  return AddressList(list);
}

std::string Describe(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(address, length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return JoinHostPort(host, port);
}

std::string AddressText(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST];
  const int error = getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? host : "";
}

void SetOption(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

UniqueFd OpenSocket(const addrinfo& address) {
  return UniqueFd(socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                         address.ai_protocol));
}

Result<UniqueFd> ListenOn(const addrinfo& address) {
  UniqueFd fd = OpenSocket(address);
  if (!fd.valid()) return Status::System("socket", errno);
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) < 0) return Status::System("bind", errno);
  if (listen(fd.get(), SOMAXCONN) < 0) return Status::System("listen", errno);
  return fd;
}

Result<uint16_t> LocalPort(int fd) {
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) < 0) {
    return Status::System("getsockname", errno);
  }
  return ntohs(local.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(local).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(local).sin_port);
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    return ntohl(ipv4.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (address->sa_family != AF_INET6) return false;
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&ipv6)) return ipv6.s6_addr[12] == IN_LOOPBACKNET;
  return IN6_IS_ADDR_LOOPBACK(&ipv6);
}

bool AllAreLoopback(const addrinfo* list) {
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    if (!IsLoopback(at->ai_addr)) return false;
  }
  return list != nullptr;
}

// On loopback, if nobody listens on the port and the kernel happens to choose it as the local port,
// the socket connects to itself. Retries make that likely.
bool IsConnectedToItself(int fd) {
  sockaddr_storage local{};
  sockaddr_storage remote{};
  socklen_t local_length = sizeof(local);
  socklen_t remote_length = sizeof(remote);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_length) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &remote_length) == 0 &&
         local_length == remote_length && memcmp(&local, &remote, local_length) == 0;
}

Result<ByteStream> BeginConnect(const addrinfo& address) {
  std::string peer = Describe(address.ai_addr, address.ai_addrlen);
  UniqueFd fd = OpenSocket(address);
  if (!fd.valid()) return Status::System("socket", errno);
  SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  const int error = connect(fd.get(), address.ai_addr, address.ai_addrlen) < 0 ? errno : 0;
  // Connecting continues after EINTR, too.
  if (error != 0 && error != EINPROGRESS && error != EINTR) return Status::System(peer, error);
  return ByteStream(std::move(fd), std::move(peer));
}

Result<ByteStream> ConnectTo(const addrinfo& address, const Deadline& deadline) {
  Result<ByteStream> stream = BeginConnect(address);
  if (!stream.ok()) return stream;
  while (true) {
    const Result<bool> connected = IsConnected(*stream);
    if (!connected.ok()) return connected.status();
    if (*connected) return stream;
    const Status waited = WaitForDescriptor(stream->fd(), POLLOUT, deadline);
    if (waited.code() == StatusCode::kTimeout) {
      return Status::Timeout("no answer from " + stream->peer());
    }
    HS_RETURN_IF_ERROR(waited);
  }
}

Result<ByteStream> TryEveryAddress(const std::string& host, uint16_t port,
                                   const Deadline& deadline) {
  const Result<AddressList> addresses = Resolve(host, port);
  if (!addresses.ok()) return addresses.status();
  Status last = Status::Internal("no address");
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    Result<ByteStream> stream = ConnectTo(*address, deadline);
    if (stream.ok()) return stream;
    last = stream.status();
  }
  return last;
}

}  // namespace

Result<TcpListener> TcpListener::Create(const std::string& host, uint16_t port) {
  const Result<AddressList> addresses = Resolve(host, port);
  if (!addresses.ok()) return addresses.status();
  Status last = Status::Internal("no address");
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    Result<UniqueFd> fd = ListenOn(*address);
    if (fd.ok()) {
      const Result<uint16_t> actual = LocalPort(fd->get());
      if (!actual.ok()) return actual.status();
      return TcpListener(fd.TakeValue(), *actual);
    }
    last = fd.status();
  }
  return Status(last.code(),
                "listening on " + JoinHostPort(host, std::to_string(port)) + ": " + last.message());
}

Result<ByteStream> TcpListener::Accept(const Deadline& deadline) {
  while (true) {
    sockaddr_storage remote{};
    socklen_t length = sizeof(remote);
    auto* address = reinterpret_cast<sockaddr*>(&remote);
    UniqueFd fd(accept4(fd_.get(), address, &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
      return ByteStream(std::move(fd), Describe(address, length));
    }
    if (errno == EAGAIN) {
      HS_RETURN_IF_ERROR(WaitForDescriptor(fd_.get(), POLLIN, deadline));
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return Status::System("accept", errno);
    }
  }
}

Result<ByteStream> BeginConnectTcp(const std::string& address, uint16_t port) {
  const Result<AddressList> addresses = Resolve(address, port, AI_NUMERICHOST);
  if (!addresses.ok()) return addresses.status();
  return BeginConnect(**addresses);
}

Result<bool> IsConnected(const ByteStream& stream) {
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(stream.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0 && IsConnectedToItself(stream.fd())) error = ECONNREFUSED;
  if (error != 0) return Status::System(stream.peer(), error);
  sockaddr_storage remote{};
  socklen_t remote_length = sizeof(remote);
  return getpeername(stream.fd(), reinterpret_cast<sockaddr*>(&remote), &remote_length) == 0;
}

Result<ByteStream> ConnectTcp(const std::string& host, uint16_t port, const Deadline& deadline,
                              WhenRefused when_refused) {
  while (true) {
    Result<ByteStream> stream = TryEveryAddress(host, port, deadline);
    if (stream.ok()) return stream;
    if (when_refused == WhenRefused::kFail || deadline.Passed()) {
      return Status(stream.status().code(), "connecting to " +
                                                JoinHostPort(host, std::to_string(port)) + ": " +
                                                stream.status().message());
    }
    const timespec pause = ToTimespec(std::min(kRetrySeconds, deadline.SecondsLeft()));
    nanosleep(&pause, nullptr);
  }
}

SilenceTimes TimesOfSilence(double seconds) {
  // The kernel counts in whole seconds. The connection is idle for a third, then many probes
  // follow: any packet may be lost, and one answer is enough.
  const int all_s = std::max(2, static_cast<int>(0.4 * seconds));
  SilenceTimes times;
  times.idle_s = std::max(1, all_s / 3);
  times.interval_s = std::max(1, all_s / 12);
  times.probes = (all_s - times.idle_s) / times.interval_s;
  // With this limit, probes end at the first tick after it.
  const int probed_s = times.idle_s + times.probes * times.interval_s;
  times.unanswered_ms = static_cast<unsigned>(probed_s) * 1000 - 100;
  return times;
}

void SetKeepAlive(const ByteStream& stream, double seconds) {
  const SilenceTimes times = TimesOfSilence(seconds);
  SetOption(stream.fd(), SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(stream.fd(), IPPROTO_TCP, TCP_KEEPIDLE, times.idle_s);
  SetOption(stream.fd(), IPPROTO_TCP, TCP_KEEPINTVL, times.interval_s);
  SetOption(stream.fd(), IPPROTO_TCP, TCP_KEEPCNT, times.probes);
}

Status SetSilenceLimit(const ByteStream& stream, double seconds) {
  SetKeepAlive(stream, seconds);
  const unsigned limit_ms = TimesOfSilence(seconds).unanswered_ms;
  if (setsockopt(stream.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof(limit_ms)) < 0) {
    return Status::System("TCP_USER_TIMEOUT", errno);
  }
  return {};
}

void Abort(const ByteStream& stream) {
  // Disconnects: TCP sends the peer a reset, even with much unsent data. Other sockets don't
  // support it.
  const sockaddr nobody = {.sa_family = AF_UNSPEC, .sa_data = {}};
  if (connect(stream.fd(), &nobody, sizeof(nobody)) != 0) shutdown(stream.fd(), SHUT_RDWR);
}

bool IsLoopbackAddress(const std::string& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (getaddrinfo(address.c_str(), nullptr, &hints, &list) != 0) return false;
  return AllAreLoopback(AddressList(list).get());
}

bool IsLoopbackHost(const std::string& host) {
  const Result<AddressList> addresses = Resolve(host, 0);
  return addresses.ok() && AllAreLoopback(addresses->get());
}

Result<std::string> LocalAddress(const ByteStream& stream) {
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  if (getsockname(stream.fd(), reinterpret_cast<sockaddr*>(&local), &length) < 0) {
    return Status::System("getsockname", errno);
  }
  return AddressText(reinterpret_cast<const sockaddr*>(&local), length);
}

Result<std::vector<std::string>> MachineAddresses(std::span<const std::string> interfaces) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) < 0) return Status::System("getifaddrs", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<std::string> addresses;
  std::set<std::string> missing(interfaces.begin(), interfaces.end());
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    const std::string name = at->ifa_name;
    const bool wanted = std::find(interfaces.begin(), interfaces.end(), name) != interfaces.end();
    if (wanted) missing.erase(name);
    if (!interfaces.empty() && !wanted) continue;
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    if ((at->ifa_flags & IFF_LOOPBACK) != 0 && !wanted) continue;
    const int family = at->ifa_addr->sa_family;
    if (family == AF_INET6) {
      const auto& address = reinterpret_cast<const sockaddr_in6&>(*at->ifa_addr).sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;
      addresses.push_back(AddressText(at->ifa_addr, sizeof(sockaddr_in6)));
    } else if (family == AF_INET) {
      addresses.push_back(AddressText(at->ifa_addr, sizeof(sockaddr_in)));
    }
  }
  if (missing.empty()) return addresses;
  return Status::InvalidArgument("no such network interface: \"" + *missing.begin() + "\"");
}

}  // namespace horoscale
