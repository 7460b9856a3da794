// The IDs of process sets. Sets that all ranks of the job create together are numbered 0, 1, 2, …
// Sets that only their members create get larger, disjoint IDs from the lowest member.
#pragma once

#include <cstdint>

namespace horoscale {

inline constexpr int kFirstIdByMembers = 1 << 30;
// Incarnations of sets that their members create; other sets do not use these values.
inline constexpr uint32_t kIncarnationByMembers = 1u << 31;

constexpr bool IsMadeByMembers(int id) { return id >= kFirstIdByMembers; }

// The number of IDs that each rank of a job has for the sets of which it is the lowest member.
constexpr uint32_t IdsByMembers(int job_size) {
  return static_cast<uint32_t>(kFirstIdByMembers / job_size);
}
// The ID of a rank's set with this number. Numbers that differ by IdsByMembers() share an ID.
constexpr int IdByMembers(int lowest, uint32_t number, int job_size) {
  return kFirstIdByMembers + static_cast<int>(number % IdsByMembers(job_size)) * job_size + lowest;
}

}  // namespace horoscale
