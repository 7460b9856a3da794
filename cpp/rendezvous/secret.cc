#include "rendezvous/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <set>
#include <vector>

#include "platform/random.h"
#include "platform/unique_fd.h"

namespace horoscale {
namespace {

// Random text of 128 bits has more, with a probability of error of one in a billion.
constexpr size_t kMinDistinctCharacters = 6;

bool AllOf(std::string_view text, int (*is_one)(int)) {
  return std::all_of(text.begin(), text.end(),
                     [is_one](char c) { return is_one(static_cast<unsigned char>(c)) != 0; });
}

// The size of the smallest common alphabet that contains the text.
int AlphabetSize(std::string_view text) {
  if (AllOf(text, isdigit)) return 10;
  if (AllOf(text, isxdigit)) return 16;
  if (AllOf(text, islower) || AllOf(text, isupper)) return 26;
  if (AllOf(text, isalnum)) return 62;
  return AllOf(text, isgraph) ? 94 : 64;  // bytes, or words separated by blanks
}

int Bits(std::string_view secret) {
  return static_cast<int>(static_cast<double>(secret.size()) * std::log2(AlphabetSize(secret)));
}

Result<std::string> ReadAll(int fd, const std::string& path) {
  std::string text(kMaxSecretBytes + 1, '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = read(fd, text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::System("reading the secret file \"" + path + "\"", errno);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  if (filled > kMaxSecretBytes) {
    return Status::InvalidArgument("the secret file \"" + path + "\" is larger than " +
                                   std::to_string(kMaxSecretBytes) + " bytes");
  }
  text.resize(filled);
  return text;
}

std::vector<gid_t> OwnGroups() {
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, getgroups(0, nullptr))));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<size_t>(std::max(0, count)));
  groups.push_back(getegid());
  return groups;
}

}  // namespace

Result<std::string> NewSecret() {
  std::array<std::byte, kNewSecretCharacters / 2> random;
  HS_RETURN_IF_ERROR(FillRandom(random));
  std::string secret;
  for (const std::byte byte : random) {
    secret += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    secret += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return secret;
}

Status CheckSecretStrength(std::string_view secret, const std::string& name) {
  const size_t distinct = std::set<char>(secret.begin(), secret.end()).size();
  const int bits = Bits(secret);
  if (bits >= kMinSecretBits && distinct >= kMinDistinctCharacters) return {};
  const std::string why =
      bits < kMinSecretBits
          ? "has at most " + std::to_string(bits) + " bits, but at least " +
                std::to_string(kMinSecretBits) + " are required"
          : "consists of only " + std::to_string(distinct) + " different characters";
  return Status::InvalidArgument(
      "the job's secret in " + name + " is too weak: it " + why +
      ". Generate one with `openssl rand -hex 32` and pass it to all ranks; none is needed if all "
      "ranks run on this host and RENDEZVOUS is on loopback");
}

Status CheckSecretFile(const FileAccess& file, uid_t user, std::span<const gid_t> groups,
                       const std::string& path) {
  const auto refused = [&path](const std::string& why) {
    return Status::InvalidArgument("the secret file \"" + path + "\" " + why);
  };
  if (file.owner != user && file.owner != 0) {
    return refused("belongs to user " + std::to_string(file.owner) + ", neither to this one, " +
                   std::to_string(user) + ", nor to root");
  }
  char mode[8];
  std::snprintf(mode, sizeof(mode), "%04o", static_cast<unsigned>(file.mode & 07777));
  if ((file.mode & S_IRWXO) != 0 || (file.mode & (S_IWGRP | S_IXGRP)) != 0) {
    return refused(std::string("has mode ") + mode +
                   ", with which others can use it: make it 0600, or 0440 where root owns it and a "
                   "container mounts it");
  }
  if ((file.mode & S_IRGRP) == 0) return {};
  const bool is_ours =
      file.group == 0 || std::find(groups.begin(), groups.end(), file.group) != groups.end();
  if (file.owner == 0 && is_ours) return {};
  return refused(std::string("has mode ") + mode + ", with which group " +
                 std::to_string(file.group) +
                 " can read it: make it 0600. Only a file of root's may be read by a group, root's "
                 "or one of this process");
}

Result<std::string> ReadSecretFile(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not block.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return Status::System("opening the secret file \"" + path + "\"", errno);
  struct stat info;
  if (fstat(file.get(), &info) != 0) return Status::System("secret file \"" + path + "\"", errno);
  if (!S_ISREG(info.st_mode)) {
    return Status::InvalidArgument("the secret file \"" + path + "\" is not a regular file");
  }
  HS_RETURN_IF_ERROR(
      CheckSecretFile({info.st_uid, info.st_gid, info.st_mode}, geteuid(), OwnGroups(), path));
  Result<std::string> secret = ReadAll(file.get(), path);
  if (!secret.ok()) return secret;
  while (!secret->empty() && (secret->back() == '\n' || secret->back() == '\r')) secret->pop_back();
  if (secret->empty()) return Status::InvalidArgument("the secret file \"" + path + "\" is empty");
  if (secret->find('\0') != std::string::npos) {  // C strings would end there
    return Status::InvalidArgument("the secret file \"" + path + "\" contains a NUL character");
  }
  return secret;
}

}  // namespace horoscale
