// The job's secret: how one is made, what is good enough to be one, and the file that may hold it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace horoscale {

inline constexpr size_t kNewSecretCharacters = 64;
// Longer ones are refused, not cut: two ranks might cut differently.
inline constexpr size_t kMaxSecretBytes = 4096;
// What all the computers of the world can't try. Who gets a rank to prove the secret can try as
// many as he likes.
inline constexpr int kMinSecretBits = 128;

// 256 random bits in hexadecimal digits.
Result<std::string> NewSecret();

// kInvalidArgument if the secret would be too easy to guess, were its characters random: words are
// easier, but can't be told apart. `name` says where the secret is from.
Status CheckSecretStrength(std::string_view secret, const std::string& name);

// What decides who can read a file.
struct FileAccess {
  uid_t owner = 0;
  gid_t group = 0;
  mode_t mode = 0;
};

// kInvalidArgument unless only this user and root can have written or can read the file. One of
// root's may be read by a group of this process: containers mount them like that, and root has
// decided who is in it. `groups` are this process'.
Status CheckSecretFile(const FileAccess& file, uid_t user, std::span<const gid_t> groups,
                       const std::string& path);

// The content without the line's end. Follows links, as containers mount files by them.
Result<std::string> ReadSecretFile(const std::string& path);

}  // namespace horoscale
