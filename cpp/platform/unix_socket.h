// Abstract unix stream sockets: byte streams within a host that can carry descriptors. They have no
// name in the file system and leave nothing behind when the process exits.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "platform/deadline.h"
#include "platform/unique_fd.h"

namespace horoscale {

class UnixListener {
 public:
  // Listens on a random name.
  static Result<UnixListener> Create();

  const std::string& name() const { return name_; }
  int fd() const { return fd_.get(); }

  Result<ByteStream> Accept(const Deadline& deadline);

 private:
  UnixListener(UniqueFd fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)) {}
  UniqueFd fd_;
  std::string name_;
};

Result<ByteStream> ConnectUnix(const std::string& name, const Deadline& deadline);

// A connected pair, both ends in this process.
Result<std::pair<ByteStream, ByteStream>> UnixPair();

// Descriptors are sent with one byte of the stream, so both sides must agree on their position in
// it.
inline constexpr size_t kMaxDescriptors = 16;
Status SendDescriptors(ByteStream& stream, std::span<const int> fds, const Deadline& deadline);
// kProtocol if there are more or fewer than `count`; received descriptors are then closed.
Result<std::vector<UniqueFd>> ReceiveDescriptors(ByteStream& stream, size_t count,
                                                 const Deadline& deadline);

}  // namespace horoscale
