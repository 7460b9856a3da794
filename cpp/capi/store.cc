// The key-value store of the C ABI.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "error.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_server.h"

struct hs_store_server {
  std::unique_ptr<horoscale::StoreServer> server;
};

struct hs_store_client {
  std::unique_ptr<horoscale::StoreClient> client;
};

using horoscale::CheckGiven;
using horoscale::Status;
using horoscale::ToCode;

hs_code hs_store_serve(const char* host, int32_t port, const char* secret, hs_store_server** out,
                       int32_t* bound_port) {
  if (Status status = CheckGiven(host, secret, out, bound_port); !status.ok()) {
    return ToCode(status);
  }
  *out = nullptr;
  if (port < 0 || port > 65535) return ToCode(Status::InvalidArgument("port out of range"));
  horoscale::StoreServerOptions options;
  options.host = host;
  options.port = static_cast<uint16_t>(port);
  options.secret = secret;
  auto server = horoscale::StoreServer::Start(std::move(options));
  if (!server.ok()) return ToCode(server.status());
  *bound_port = (*server)->port();
  *out = new hs_store_server{server.TakeValue()};
  return HS_OK;
}

void hs_store_server_free(hs_store_server* server) { delete server; }

hs_code hs_store_connect(const char* host, int32_t port, const char* secret, double seconds,
                         hs_store_client** out) {
  if (Status status = CheckGiven(host, secret, out); !status.ok()) return ToCode(status);
  *out = nullptr;
  if (port <= 0 || port > 65535) return ToCode(Status::InvalidArgument("port out of range"));
  auto client = horoscale::StoreClient::Connect(host, static_cast<uint16_t>(port), secret, seconds);
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
  *value = std::malloc(found->size() + 1);  // never of size 0: null would look like no value
  if (*value == nullptr) return ToCode(Status::System("allocating a value", ENOMEM));
  std::copy(found->begin(), found->end(), static_cast<std::byte*>(*value));
  *bytes = found->size();
  return HS_OK;
}

void hs_store_client_free(hs_store_client* client) { delete client; }
