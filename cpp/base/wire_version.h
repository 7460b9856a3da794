// The version of everything that the ranks of a job tell each other: control messages, layouts of
// shared memory, what streams between hosts carry, and what ranks write into the store. It grows
// with each change that an older rank would not understand. docs/versions.md says what may be
// mixed.
#pragma once

#include <cstdint>

namespace horoscale {

inline constexpr uint32_t kWireVersion = 12;

}  // namespace horoscale
