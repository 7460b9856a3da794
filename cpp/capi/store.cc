// The key-value store of the C ABI.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/names.h"
#include "error.h"
#include "platform/deadline.h"
#include "platform/environment.h"
#include "platform/tcp_socket.h"
#include "rendezvous/local_secret.h"
#include "rendezvous/secret.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_server.h"
#include "runtime/identity.h"

struct hs_store_server {
  std::optional<horoscale::LocalSecret> secret;  // if no secret was given
  std::unique_ptr<horoscale::StoreServer> server;
};

struct hs_store_client {
  std::unique_ptr<horoscale::StoreClient> client;
};

using horoscale::CheckGiven;
using horoscale::Deadline;
using horoscale::Result;
using horoscale::Status;
using horoscale::StoreClient;
using horoscale::ToCode;

namespace {

Status CheckLoopback(const std::string& host) {
  if (horoscale::IsLoopbackHost(host)) return {};
  return Status::InvalidArgument("a store on " + host +
                                 " needs a secret, because it is not on loopback");
}

Status CheckSecret(const std::string& host, const char* secret) {
  if (horoscale::IsLoopbackHost(host)) return {};
  return horoscale::CheckSecretStrength(secret, "the argument");
}

Status Serve(const std::string& host, uint16_t port, const char* secret, bool encrypt,
             hs_store_server* out) {
  horoscale::StoreServerOptions options;
  options.hosts = horoscale::SplitNames(host);
  options.port = port;
  options.encrypt = encrypt;
  if (secret != nullptr) {
    for (const std::string& one : options.hosts) HS_RETURN_IF_ERROR(CheckSecret(one, secret));
    options.secret = secret;
  } else {
    HS_RETURN_IF_ERROR(CheckLoopback(host));
    auto made = horoscale::LocalSecret::Create();
    if (!made.ok()) return made.status();
    options.secret = made->text();
    out->secret = made.TakeValue();
  }
  auto server = horoscale::StoreServer::Start(std::move(options));
  if (!server.ok()) return server.status();
  out->server = server.TakeValue();
  return out->secret ? out->secret->Publish({host, out->server->port()}) : Status::Ok();
}

Result<std::unique_ptr<StoreClient>> Connect(const std::string& host, uint16_t port,
                                             const char* secret, bool encrypt, double seconds) {
  if (secret != nullptr) {
    HS_RETURN_IF_ERROR(CheckSecret(host, secret));
    return StoreClient::Connect(host, port, secret, seconds, encrypt);
  }
  HS_RETURN_IF_ERROR(CheckLoopback(host));
  std::string found;
  return horoscale::ConnectWithLocalSecret({host, port}, Deadline::After(seconds), &found, encrypt);
}

// Returns a copy that the caller frees.
char* Duplicate(std::span<const std::byte> bytes) {
  // Never of size 0, because null means that there is no value.
  auto* copy = static_cast<char*>(std::malloc(bytes.size() + 1));
  if (copy == nullptr) return nullptr;
  if (!bytes.empty()) std::memcpy(copy, bytes.data(), bytes.size());
  copy[bytes.size()] = '\0';
  return copy;
}

}  // namespace

hs_code hs_job_secret(char** secret) {
  if (Status status = CheckGiven(secret); !status.ok()) return ToCode(status);
  *secret = nullptr;
  const auto found = horoscale::FindSecret(std::nullopt, horoscale::FindVariable);
  if (!found.ok()) return ToCode(found.status());
  if (!found->has_value()) return HS_OK;
  *secret = Duplicate(std::as_bytes(std::span(**found)));
  return *secret == nullptr ? ToCode(Status::System("allocating a secret", ENOMEM)) : HS_OK;
}

hs_code hs_store_serve(const char* host, int32_t port, const char* secret, int32_t encrypt,
                       hs_store_server** out, int32_t* bound_port) {
  if (Status status = CheckGiven(host, out, bound_port); !status.ok()) return ToCode(status);
  *out = nullptr;
  if (port < 0 || port > 65535) return ToCode(Status::InvalidArgument("port out of range"));
  auto served = std::make_unique<hs_store_server>();
  if (Status status = Serve(host, static_cast<uint16_t>(port), secret, encrypt != 0, served.get());
      !status.ok()) {
    return ToCode(status);
  }
  *bound_port = served->server->port();
  *out = served.release();
  return HS_OK;
}

void hs_store_server_free(hs_store_server* server) { delete server; }

hs_code hs_store_connect(const char* host, int32_t port, const char* secret, int32_t encrypt,
                         double seconds, hs_store_client** out) {
  if (Status status = CheckGiven(host, out); !status.ok()) return ToCode(status);
  *out = nullptr;
  if (port <= 0 || port > 65535) return ToCode(Status::InvalidArgument("port out of range"));
  auto client = Connect(host, static_cast<uint16_t>(port), secret, encrypt != 0, seconds);
  if (!client.ok()) return ToCode(client.status());
  *out = new hs_store_client{client.TakeValue()};
  return HS_OK;
}

hs_code hs_store_set(hs_store_client* client, const char* key, const void* value, size_t bytes) {
  if (Status status = CheckGiven(client, key); !status.ok()) return ToCode(status);
  if (bytes > 0 && value == nullptr) return ToCode(Status::InvalidArgument("the value is null"));
  return ToCode(client->client->Set(key, {static_cast<const std::byte*>(value), bytes}));
}

hs_code hs_store_get(hs_store_client* client, const char* key, double seconds, void** value,
                     size_t* bytes) {
  if (Status status = CheckGiven(client, key, value, bytes); !status.ok()) return ToCode(status);
  *value = nullptr;
  *bytes = 0;
  const auto found = client->client->Get(key, seconds);
  if (!found.ok()) return ToCode(found.status());
  *value = Duplicate(*found);
  if (*value == nullptr) return ToCode(Status::System("allocating a value", ENOMEM));
  *bytes = found->size();
  return HS_OK;
}

void hs_store_client_free(hs_store_client* client) { delete client; }
