#include "platform/raw_socket.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

namespace horoscale {
namespace {

// Fills in a message of the pieces, with their addresses in `vectors`; returns its size in bytes.
template <typename Byte>
size_t Describe(std::span<const std::span<Byte>> pieces, iovec* vectors, msghdr* message) {
  const size_t count = std::min(pieces.size(), kMaxSocketPieces);
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

Result<size_t> RawSend(int fd, const std::string& peer,
                       std::span<const std::span<const std::byte>> pieces) {
  iovec vectors[kMaxSocketPieces];
  msghdr message{};
  Describe(pieces, vectors, &message);
  while (true) {
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return Status::System("sending to " + peer, errno);
  }
}

Result<size_t> RawReceive(int fd, const std::string& peer,
                          std::span<const std::span<std::byte>> pieces) {
  iovec vectors[kMaxSocketPieces];
  msghdr message{};
  if (Describe(pieces, vectors, &message) == 0) return size_t{0};
  while (true) {
    const ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return Status(StatusCode::kSystem, peer + " closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return Status::System("receiving from " + peer, errno);
  }
}

}  // namespace horoscale
