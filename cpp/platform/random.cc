#include "platform/random.h"

#include <errno.h>
#include <sys/random.h>

namespace horoscale {

Status FillRandom(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno != EINTR) return Status::System("getrandom", errno);
    if (got > 0) bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return Status::Ok();
}

}  // namespace horoscale
