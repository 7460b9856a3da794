#include "platform/byte_stream.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

#include "platform/wait.h"

namespace horoscale {

Result<size_t> ByteStream::SendSome(std::span<const std::byte> bytes) {
  while (true) {
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return Status::System("sending to " + peer_, errno);
  }
}

Result<size_t> ByteStream::SendSome(std::span<const std::span<const std::byte>> pieces) {
  iovec vectors[kMaxPieces];
  const size_t count = std::min(pieces.size(), kMaxPieces);
  for (size_t i = 0; i < count; ++i) {
    vectors[i] = {const_cast<std::byte*>(pieces[i].data()), pieces[i].size()};
  }
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = count;
  while (true) {
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return Status::System("sending to " + peer_, errno);
  }
}

Result<size_t> ByteStream::ReceiveSome(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return Status(StatusCode::kSystem, peer_ + " closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return Status::System("receiving from " + peer_, errno);
  }
  return size_t{0};
}

Status ByteStream::Wait(short events, const Deadline& deadline, const char* doing) {
  Status waited = WaitForDescriptor(fd_.get(), events, deadline);
  if (waited.code() == StatusCode::kTimeout) {
    return Status::Timeout(std::string("timed out ") + doing + " " + peer_);
  }
  return waited;
}

Status ByteStream::SendAll(std::span<const std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    Result<size_t> sent = SendSome(bytes);
    if (!sent.ok()) return sent.status();
    bytes = bytes.subspan(*sent);
    if (*sent == 0) HS_RETURN_IF_ERROR(Wait(POLLOUT, deadline, "sending to"));
  }
  return Status::Ok();
}

Status ByteStream::ReceiveAll(std::span<std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    Result<size_t> got = ReceiveSome(bytes);
    if (!got.ok()) return got.status();
    bytes = bytes.subspan(*got);
    if (*got == 0) HS_RETURN_IF_ERROR(Wait(POLLIN, deadline, "waiting for"));
  }
  return Status::Ok();
}

}  // namespace horoscale
