// StoreServer: serves a Store to all ranks of a job over TCP.
//
// One thread serves every connection and never waits for one. Nothing of a connection is looked at
// before it has proved the secret, for which it has a few seconds. Strangers are refused with a
// line in the log and can hold neither memory nor descriptors: the number of connections that have
// not authenticated is bounded, and the oldest of them makes room for the next.
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

// What store connections are authenticated for (see auth.h).
inline constexpr char kStoreAuthContext[] = "store";

struct StoreServerOptions {
  std::vector<std::string> hosts = {"127.0.0.1"};  // where to listen, at one port
  uint16_t port = 0;                               // 0: any
  std::string secret = {};                         // never empty
  bool encrypt = false;                            // ENCRYPT; clients have to have the same
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
  // How many it has had. Not after Stop().
  uint64_t requests() const;

  // Closes every connection and joins the thread, at once whatever clients do. Idempotent.
  void Stop();

 private:
  explicit StoreServer(std::unique_ptr<StoreServerLoop> loop);
  std::unique_ptr<StoreServerLoop> loop_;  // null after Stop()
  uint16_t port_;
  Thread thread_;
};

}  // namespace horoscale
