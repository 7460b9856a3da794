// StoreClient: the Store of a StoreServer somewhere else, over one authenticated TCP connection.
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

// Thread-safe, one request at a time: while a Get() waits, other threads wait for it. An error of
// the connection is final; every later call returns it again.
class StoreClient final : public Store {
 public:
  // Tries until the server is there and has authenticated us, at most for `seconds`. A wrong secret
  // fails at once with kUnauthenticated, another setting of ENCRYPT than the server's with
  // kInvalidArgument.
  static Result<std::unique_ptr<StoreClient>> Connect(const std::string& host, uint16_t port,
                                                      std::string_view secret, double seconds,
                                                      bool encrypt = false);

  // At the first of the server's addresses where it is found: those of a machine don't all lead to
  // it from everywhere, and may lead to another one. kSystem names all of them if none does within
  // `seconds`.
  static Result<std::unique_ptr<StoreClient>> ConnectToAny(std::span<const std::string> hosts,
                                                           uint16_t port, std::string_view secret,
                                                           double seconds, bool encrypt = false);

  // Of this machine, by which it reaches the server.
  Result<std::string> LocalAddress() const { return horoscale::LocalAddress(stream_); }

  Status Set(std::string_view key, std::span<const std::byte> value) override;
  Result<std::vector<std::byte>> Get(std::string_view key, double seconds) override;
  Result<Gathered> Gather(const GatherRequest& request, double seconds) override;

  // No call lasts beyond it, also if the server has become silent.
  void EndBy(const Deadline& deadline) { end_by_ = deadline; }

 private:
  explicit StoreClient(ByteStream stream) : stream_(std::move(stream)) {}

  // A reply's payload: a value, or what an error says.
  struct Answer {
    StatusCode code = StatusCode::kOk;
    std::vector<std::byte> payload;
    Status ToStatus() const;
  };
  // Sends a request and returns its reply; an error is one of the connection.
  Result<Answer> Call(std::span<const std::byte> request, double seconds);
  Result<std::vector<std::byte>> ReceiveBody(const Deadline& deadline);

  std::mutex mutex_;
  ByteStream stream_;  // guarded by mutex_
  Deadline end_by_ = Deadline::Never();
  Status broken_;  // guarded by mutex_; why the connection can't be used any more
};

}  // namespace horoscale
