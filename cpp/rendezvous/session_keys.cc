#include "rendezvous/session_keys.h"

#include <algorithm>
#include <vector>

#include "base/bytes.h"

namespace horoscale {
namespace {

// HKDF-Expand with a single block. Labels end with a NUL, so that different inputs can't be
// confused.
Sha256Digest Expand(const Sha256Digest& pseudorandom, std::string_view label,
                    std::string_view context) {
  std::vector<std::byte> info;
  for (const std::string_view part : {std::string_view("horoscale "), label}) {
    info.insert(info.end(), AsBytes(part).begin(), AsBytes(part).end());
  }
  info.push_back(std::byte{0});
  info.insert(info.end(), AsBytes(context).begin(), AsBytes(context).end());
  info.push_back(std::byte{1});
  return HmacSha256(pseudorandom, info);
}

MessageKey Truncate(const Sha256Digest& digest) {
  MessageKey key;
  std::copy_n(digest.begin(), key.size(), key.begin());
  return key;
}

}  // namespace

SessionKeys DeriveSessionKeys(std::string_view secret, std::span<const std::byte> nonces,
                              std::string_view context) {
  const Sha256Digest pseudorandom = HmacSha256(nonces, AsBytes(secret));  // HKDF-Extract
  return {.client_to_server = Truncate(Expand(pseudorandom, "client to server", context)),
          .server_to_client = Truncate(Expand(pseudorandom, "server to client", context)),
          .tls = Expand(pseudorandom, "tls", context)};
}

}  // namespace horoscale
