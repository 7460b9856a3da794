// Sends to and receives from a connected, non-blocking stream socket without waiting.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace horoscale {

// The maximum number of pieces per call.
inline constexpr size_t kMaxSocketPieces = 16;

// Sends as many bytes as possible without waiting and returns their number, possibly 0. The end of
// the stream is kSystem; `peer` names the other side in errors.
Result<size_t> RawSend(int fd, const std::string& peer,
                       std::span<const std::span<const std::byte>> pieces);
Result<size_t> RawReceive(int fd, const std::string& peer,
                          std::span<const std::span<std::byte>> pieces);

}  // namespace horoscale
