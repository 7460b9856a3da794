// Cryptographic random bytes, for nonces, secrets and names that can't be guessed.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"

namespace horoscale {

Status FillRandom(std::span<std::byte> bytes);

}  // namespace horoscale
