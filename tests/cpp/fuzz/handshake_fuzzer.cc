// Whatever a peer without the secret sends, neither side of the handshake accepts it as
// authenticated.
#include <stdlib.h>

#include <cstdint>

#include "rendezvous/auth.h"

using namespace horoscale;

namespace {

void FeedStranger(Handshake::Role role, std::span<const std::byte> bytes) {
  Handshake handshake(role, "a secret that the input does not know", "store",
                      Protection::kAuthenticated, {});
  while (handshake.wanted() > 0 && bytes.size() >= handshake.wanted()) {
    const size_t wanted = handshake.wanted();
    const bool ok = handshake.Feed(bytes.first(wanted)).ok();
    handshake.TakeOutput();
    bytes = bytes.subspan(wanted);
    if (!ok && handshake.wanted() != 0) abort();
  }
  if (handshake.done()) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  FeedStranger(Handshake::Role::kServer, bytes);
  FeedStranger(Handshake::Role::kClient, bytes);
  return 0;
}
