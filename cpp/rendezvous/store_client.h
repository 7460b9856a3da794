// StoreClient: the Store of a remote StoreServer, over one authenticated TCP connection.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "platform/byte_stream.h"
#include "platform/deadline.h"
#include "platform/tcp_socket.h"
#include "rendezvous/store.h"

namespace horoscale {

// Thread-safe, with one request at a time: during a Get(), other threads wait. Errors of the
// connection are final; later calls return the same error.
class StoreClient final : public Store {
 public:
  // Retries for at most `seconds` until the server is available and has authenticated this process.
  // A wrong secret fails immediately with kUnauthenticated, and a different ENCRYPT setting with
  // kInvalidArgument.
  static Result<std::unique_ptr<StoreClient>> Connect(const std::string& host, uint16_t port,
                                                      std::string_view secret, double seconds,
                                                      bool encrypt = false);

  // Connects to the first of the server's addresses that works. Not all addresses of a machine are
  // reachable from everywhere, and some may lead to another machine. kSystem lists all addresses if
  // none works within `seconds`.
  static Result<std::unique_ptr<StoreClient>> ConnectToAny(std::span<const std::string> hosts,
                                                           uint16_t port, std::string_view secret,
                                                           double seconds, bool encrypt = false);

  // The address of this machine from which it reaches the server.
  Result<std::string> LocalAddress() const { return horoscale::LocalAddress(stream_); }

  Status Set(std::string_view key, std::span<const std::byte> value) override;
  Result<std::vector<std::byte>> Get(std::string_view key, double seconds) override;
  Result<Gathered> Gather(const GatherRequest& request, double seconds) override;

  // Limits all calls to this deadline, even if the server does not respond.
  void EndBy(const Deadline& deadline) { end_by_ = deadline; }

 private:
  explicit StoreClient(ByteStream stream) : stream_(std::move(stream)) {}

  // A reply: its payload is a value or an error message.
  struct Answer {
    StatusCode code = StatusCode::kOk;
    std::vector<std::byte> payload;
    Status ToStatus() const;
  };
  // Sends a request and returns its reply; fails only if the connection fails.
  Result<Answer> Call(std::span<const std::byte> request, double seconds);
  Result<std::vector<std::byte>> ReceiveBody(const Deadline& deadline);

  std::mutex mutex_;
  ByteStream stream_;  // guarded by mutex_
  Deadline end_by_ = Deadline::Never();
  Status broken_;  // guarded by mutex_; the final error of the connection
};

}  // namespace horoscale
