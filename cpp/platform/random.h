// Cryptographic random bytes, for nonces, secrets and unguessable names.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"

namespace horoscale {

Status FillRandom(std::span<std::byte> bytes);

}  // namespace horoscale
