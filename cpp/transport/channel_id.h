// ChannelId: a process set as the wire knows it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace horoscale {

// Ids are used again, incarnations never: a late frame of a removed set can't meet its successor.
struct ChannelId {
  uint32_t process_set = 0;
  uint32_t incarnation = 0;
  auto operator<=>(const ChannelId&) const = default;
};

std::string Describe(ChannelId channel);

}  // namespace horoscale
