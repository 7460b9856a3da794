#include "platform/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <array>

#include "platform/random.h"
#include "platform/wait.h"

namespace horoscale {
namespace {

struct Address {
  sockaddr_un value{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

// A leading zero byte in sun_path makes the name abstract.
Result<Address> MakeAddress(const std::string& name) {
  Address address;
  if (name.empty() || name.size() + 1 > sizeof(address.value.sun_path)) {
    return Status::InvalidArgument("invalid unix socket name of " + std::to_string(name.size()) +
                                   " bytes");
  }
  address.value.sun_family = AF_UNIX;
  memcpy(address.value.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<std::string> RandomName() {
  std::array<std::byte, 16> bytes;
  HS_RETURN_IF_ERROR(FillRandom(bytes));
  std::string name = "horoscale-";
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    name += kDigits[std::to_integer<unsigned>(byte) >> 4];
    name += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return name;
}

// A Unix connect() can't be polled: it either succeeds or waits for room in the listener's backlog.
// So it is a blocking call with a send timeout.
Status ConnectBlocking(int fd, const Address& address, const std::string& peer,
                       const Deadline& deadline) {
  while (true) {
    const timespec left = ToTimespec(deadline.SecondsLeft());
    timeval timeout{left.tv_sec, left.tv_nsec / 1000};
    if (timeout.tv_sec == 0 && timeout.tv_usec == 0) timeout.tv_usec = 1;  // zero means no limit
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    if (connect(fd, address.get(), address.length) == 0) return Status::Ok();
    if (errno == EAGAIN && deadline.Passed()) {
      return Status::Timeout("timed out connecting to " + peer);
    }
    if (errno != EAGAIN && errno != EINTR) return Status::System("connecting to " + peer, errno);
  }
}

struct alignas(cmsghdr) ControlBuffer {
  std::array<char, CMSG_SPACE(sizeof(int) * kMaxDescriptors)> bytes{};
};

// Owns all received descriptors, expected or not.
std::vector<UniqueFd> TakeDescriptors(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

Result<UnixListener> UnixListener::Create() {
  Result<std::string> name = RandomName();
  if (!name.ok()) return name.status();
  const Result<Address> address = MakeAddress(*name);
  if (!address.ok()) return address.status();
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Status::System("unix socket", errno);
  if (bind(fd.get(), address->get(), address->length) < 0) {
    return Status::System("binding a unix socket", errno);
  }
  if (listen(fd.get(), SOMAXCONN) < 0) return Status::System("listening on a unix socket", errno);
  return UnixListener(std::move(fd), name.TakeValue());
}

Result<ByteStream> UnixListener::Accept(const Deadline& deadline) {
  while (true) {
    UniqueFd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) return ByteStream(std::move(fd), "a peer of unix socket @" + name_);
    if (errno == EAGAIN) {
      HS_RETURN_IF_ERROR(WaitForDescriptor(fd_.get(), POLLIN, deadline));
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return Status::System("accepting on a unix socket", errno);
    }
  }
}

Result<ByteStream> ConnectUnix(const std::string& name, const Deadline& deadline) {
  const Result<Address> address = MakeAddress(name);
  if (!address.ok()) return address.status();
  const std::string peer = "unix socket @" + name;
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status::System("unix socket", errno);
  HS_RETURN_IF_ERROR(ConnectBlocking(fd.get(), *address, peer, deadline));
  if (fcntl(fd.get(), F_SETFL, O_NONBLOCK) < 0) return Status::System("fcntl", errno);
  return ByteStream(std::move(fd), peer);
}

Result<std::pair<ByteStream, ByteStream>> UnixPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0) {
    return Status::System("socketpair", errno);
  }
  return std::pair(ByteStream(UniqueFd(fds[0]), "socketpair"),
                   ByteStream(UniqueFd(fds[1]), "socketpair"));
}

Status SendDescriptors(ByteStream& stream, std::span<const int> fds, const Deadline& deadline) {
  if (fds.empty() || fds.size() > kMaxDescriptors) {
    return Status::InvalidArgument(std::to_string(fds.size()) +
                                   " descriptors are more than one message can send");
  }
  std::byte carrier{};
  iovec data{&carrier, 1};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(fds.size_bytes());
  memcpy(CMSG_DATA(part), fds.data(), fds.size_bytes());
  while (sendmsg(stream.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EAGAIN) {
      HS_RETURN_IF_ERROR(WaitForDescriptor(stream.fd(), POLLOUT, deadline));
    } else if (errno != EINTR) {
      return Status::System("sending descriptors to " + stream.peer(), errno);
    }
  }
  return Status::Ok();
}

Result<std::vector<UniqueFd>> ReceiveDescriptors(ByteStream& stream, size_t count,
                                                 const Deadline& deadline) {
  while (true) {
    std::byte carrier{};
    iovec data{&carrier, 1};
    ControlBuffer control;
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    const ssize_t got = recvmsg(stream.fd(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got > 0) {
      std::vector<UniqueFd> fds = TakeDescriptors(message);
      if (fds.size() == count && (message.msg_flags & MSG_CTRUNC) == 0) return fds;
      return Status::Protocol("expected " + std::to_string(count) + " descriptors from " +
                              stream.peer() + ", got " + std::to_string(fds.size()) +
                              ((message.msg_flags & MSG_CTRUNC) != 0 ? " or more" : ""));
    }
    if (got == 0) return Status(StatusCode::kSystem, stream.peer() + " closed the connection");
    if (errno == EAGAIN) {
      HS_RETURN_IF_ERROR(WaitForDescriptor(stream.fd(), POLLIN, deadline));
    } else if (errno != EINTR) {
      return Status::System("receiving descriptors from " + stream.peer(), errno);
    }
  }
}

}  // namespace horoscale
