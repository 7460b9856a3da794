// The ids of process sets. All ranks of the job number the sets that they make together: 0, 1, 2, …
// The others are numbered by the lowest of the members that make them, above those and apart from
// each other.
#pragma once

#include <cstdint>

namespace horoscale {

inline constexpr int kFirstIdByMembers = 1 << 30;
// Their incarnations, which no others may have.
inline constexpr uint32_t kIncarnationByMembers = 1u << 31;

constexpr bool IsMadeByMembers(int id) { return id >= kFirstIdByMembers; }

// How many ids each rank of a job has for the sets of which it is the lowest member.
constexpr uint32_t IdsByMembers(int job_size) {
  return static_cast<uint32_t>(kFirstIdByMembers / job_size);
}
// The id of a rank's set of that number. Numbers that differ by IdsByMembers() share one.
constexpr int IdByMembers(int lowest, uint32_t number, int job_size) {
  return kFirstIdByMembers + static_cast<int>(number % IdsByMembers(job_size)) * job_size + lowest;
}

}  // namespace horoscale
