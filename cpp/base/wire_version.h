// The version of all communication between ranks: control messages, layouts of shared memory,
// messages between hosts, and keys and values in the store. It is incremented by each incompatible
// change. docs/versions.md describes which versions can be mixed.
#pragma once

#include <cstdint>

namespace horoscale {

inline constexpr uint32_t kWireVersion = 12;

}  // namespace horoscale
