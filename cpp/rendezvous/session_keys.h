// The keys of one connection, which both sides derive from the job's secret and from the handshake
// (HKDF with HMAC-SHA256, RFC 5869). Nonces are fresh for each connection, so that its keys are
// unique and reveal nothing about the secret.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "platform/byte_stream.h"
#include "rendezvous/sha256.h"

namespace horoscale {

struct SessionKeys {
  MessageKey client_to_server;
  MessageKey server_to_client;
  Sha256Digest tls;  // the pre-shared key of an encrypted connection
};

// `nonces`: the client's and the server's; `context` as in rendezvous/auth.h.
SessionKeys DeriveSessionKeys(std::string_view secret, std::span<const std::byte> nonces,
                              std::string_view context);

}  // namespace horoscale
