// ChannelId: identifies a process set on the wire.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace horoscale {

// IDs are reused, incarnations are not, so a late frame of a removed set can't reach its successor.
struct ChannelId {
  uint32_t process_set = 0;
  uint32_t incarnation = 0;
  auto operator<=>(const ChannelId&) const = default;
};

std::string Describe(ChannelId channel);

}  // namespace horoscale
