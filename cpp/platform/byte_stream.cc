#include "platform/byte_stream.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

#include "platform/wait.h"

namespace horoscale {
namespace {

// A message of the pieces, whose places go into `vectors`; returns how many bytes they are.
template <typename Byte>
size_t Describe(std::span<const std::span<Byte>> pieces, iovec* vectors, msghdr* message) {
  const size_t count = std::min(pieces.size(), ByteStream::kMaxPieces);
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    vectors[i] = {const_cast<std::byte*>(pieces[i].data()), pieces[i].size()};
    bytes += pieces[i].size();
  }
  message->msg_iov = vectors;
  message->msg_iovlen = count;
  return bytes;
}

}  // namespace

Result<size_t> ByteStream::SendSome(std::span<const std::byte> bytes) {
  return SendSome(std::span(&bytes, 1));
}

Result<size_t> ByteStream::ReceiveSome(std::span<std::byte> bytes) {
  return ReceiveSome(std::span(&bytes, 1));
}

Result<size_t> ByteStream::SendSome(std::span<const std::span<const std::byte>> pieces) {
  iovec vectors[kMaxPieces];
  msghdr message{};
  Describe(pieces, vectors, &message);
  while (true) {
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return Status::System("sending to " + peer_, errno);
  }
}

Result<size_t> ByteStream::ReceiveSome(std::span<const std::span<std::byte>> pieces) {
  iovec vectors[kMaxPieces];
  msghdr message{};
  if (Describe(pieces, vectors, &message) == 0) return size_t{0};
  while (true) {
    const ssize_t got = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return Status(StatusCode::kSystem, peer_ + " closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return Status::System("receiving from " + peer_, errno);
  }
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
