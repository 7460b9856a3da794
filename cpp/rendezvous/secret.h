// The job's secret: generation, strength check, and the secret file.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace horoscale {

inline constexpr size_t kNewSecretCharacters = 64;
// Longer secrets are rejected instead of truncated, because ranks might truncate differently.
inline constexpr size_t kMaxSecretBytes = 4096;
// Infeasible to search: an attacker who has obtained a rank's proof can test any number of guesses.
inline constexpr int kMinSecretBits = 128;

// 256 random bits as hexadecimal digits.
Result<std::string> NewSecret();

// kInvalidArgument if the secret would be too weak even if its characters were random; words are
// weaker, but can't be detected. `name` is the source of the secret.
Status CheckSecretStrength(std::string_view secret, const std::string& name);

// The attributes that determine who can read a file.
struct FileAccess {
  uid_t owner = 0;
  gid_t group = 0;
  mode_t mode = 0;
};

// kInvalidArgument unless only this user and root can write and read the file. A file that root
// owns may be readable by a group of this process: containers mount files like that, and root
// decides who is in the group. `groups` are the groups of this process.
Status CheckSecretFile(const FileAccess& file, uid_t user, std::span<const gid_t> groups,
                       const std::string& path);

// Returns the content without the trailing newline. Follows symbolic links, which containers use to
// mount files.
Result<std::string> ReadSecretFile(const std::string& path);

}  // namespace horoscale
