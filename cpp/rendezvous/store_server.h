// StoreServer: serves a Store to all ranks of a job over TCP.
//
// One thread serves all connections and never blocks on one. No data of a connection is processed
// before it has authenticated, which must happen within a few seconds. Rejected connections are
// logged and can exhaust neither memory nor descriptors: the number of unauthenticated connections
// is limited, and the oldest is dropped for the next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/thread.h"
#include "rendezvous/auth.h"
#include "rendezvous/store_table.h"

namespace horoscale {

// The context of store connections' authentication (see auth.h).
inline constexpr char kStoreAuthContext[] = "store";

struct StoreServerOptions {
  std::vector<std::string> hosts = {"127.0.0.1"};  // addresses to listen on, with the same port
  uint16_t port = 0;                               // 0: any
  std::string secret = {};                         // never empty
  bool encrypt = false;                            // ENCRYPT; clients must have the same setting
  double handshake_seconds = kHandshakeSeconds;
  size_t max_unauthenticated = 256;
  size_t capacity_bytes = StoreTable::kDefaultCapacityBytes;
};

class StoreServerLoop;

class StoreServer {
 public:
  static Result<std::unique_ptr<StoreServer>> Start(StoreServerOptions options);
  ~StoreServer();

  uint16_t port() const { return port_; }
  // The number of requests so far. Must not be called after Stop().
  uint64_t requests() const;

  // Closes all connections and joins the thread, without waiting for clients. Idempotent.
  void Stop();

 private:
  explicit StoreServer(std::unique_ptr<StoreServerLoop> loop);
  std::unique_ptr<StoreServerLoop> loop_;  // null after Stop()
  uint16_t port_;
  Thread thread_;
};

}  // namespace horoscale
