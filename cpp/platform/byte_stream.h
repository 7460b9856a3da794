// ByteStream: a connected stream socket, unix or TCP, that never blocks without a deadline.
//
// Not thread-safe. Writing to a closed peer is an error, never SIGPIPE.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"
#include "platform/deadline.h"
#include "platform/unique_fd.h"

namespace horoscale {

class ByteStream {
 public:
  // `fd` must be non-blocking. `peer` is the other side as errors call it: "127.0.0.1:4711".
  ByteStream(UniqueFd fd, std::string peer) : fd_(std::move(fd)), peer_(std::move(peer)) {}

  int fd() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }

  // All bytes or an error: kTimeout, or kSystem if the connection broke or ended. After an error
  // the stream is of no use, because part of the bytes may have gone.
  Status SendAll(std::span<const std::byte> bytes, const Deadline& deadline);
  Status ReceiveAll(std::span<std::byte> bytes, const Deadline& deadline);

  // What goes without waiting, 0 if nothing does. The end of the stream is kSystem.
  Result<size_t> SendSome(std::span<const std::byte> bytes);
  Result<size_t> ReceiveSome(std::span<std::byte> bytes);
  // The same for several pieces, one behind the other; at most kMaxPieces.
  static constexpr size_t kMaxPieces = 16;
  Result<size_t> SendSome(std::span<const std::span<const std::byte>> pieces);
  Result<size_t> ReceiveSome(std::span<const std::span<std::byte>> pieces);

 private:
  Status Wait(short events, const Deadline& deadline, const char* doing);

  UniqueFd fd_;
  std::string peer_;
};

}  // namespace horoscale
