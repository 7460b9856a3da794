// What goes into a connected, non-blocking stream socket, and comes from it, at once.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace horoscale {

// Of which a call looks at no more.
inline constexpr size_t kMaxSocketPieces = 16;

// What goes without waiting, 0 if nothing does. The end of the stream is kSystem; `peer` is the
// other side as errors call it.
Result<size_t> RawSend(int fd, const std::string& peer,
                       std::span<const std::span<const std::byte>> pieces);
Result<size_t> RawReceive(int fd, const std::string& peer,
                          std::span<const std::span<std::byte>> pieces);

}  // namespace horoscale
