// TlsLayer: TLS 1.3 on a stream, with a pre-shared key and without certificates. Each connection
// negotiates its own keys (ECDHE), so that recorded traffic stays secret if the pre-shared key
// leaks later.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/stream_layer.h"
#include "platform/tls_library.h"

namespace horoscale {

using TlsKey = std::array<std::byte, kTlsKeyBytes>;

class TlsLayer final : public StreamLayer {
 public:
  enum class Role : uint8_t { kClient, kServer };

  // The sender updates its key after this many bytes, well below AES-GCM's limit.
  static constexpr uint64_t kBytesOfKey = uint64_t{1} << 36;

  // `fd` is owned by the stream; `peer` is for errors. kUnimplemented if OpenSSL is unavailable.
  static Result<std::unique_ptr<TlsLayer>> Create(Role role, int fd, std::string peer,
                                                  const TlsKey& key,
                                                  uint64_t bytes_of_key = kBytesOfKey);
  ~TlsLayer() override;
  TlsLayer(const TlsLayer&) = delete;
  TlsLayer& operator=(const TlsLayer&) = delete;

  Result<bool> Handshake() override;
  Result<size_t> Send(std::span<const std::span<const std::byte>> pieces) override;
  Result<size_t> Receive(std::span<const std::span<std::byte>> pieces) override;
  bool HasPending() const override { return has_pending_; }
  short EventsToSend() const override { return is_ready_ ? POLLOUT : awaited_; }
  short EventsToReceive() const override { return is_ready_ ? POLLIN : awaited_; }

  // Whether the kernel encrypts sent data.
  bool kernel_sends() const { return kernel_sends_; }
  uint64_t key_changes() const { return key_changes_; }

 private:
  TlsLayer(const TlsLibrary& library, int fd, std::string peer, const TlsKey& key,
           uint64_t bytes_of_key);

  // The following require a TlsLibrary::Use.
  Result<bool> Shake();
  Status OnHandshakeDone();
  Status ChangeKeyIfDue();
  // The Status for a failed call.
  Status Failure(const char* doing, int error) const;

  const TlsLibrary& library_;
  const int fd_;
  const std::string peer_;
  TlsKey key_;
  const uint64_t bytes_of_key_;
  Ssl* ssl_ = nullptr;
  bool is_ready_ = false;  // the handshake is complete
  short awaited_ = POLLIN;
  bool has_pending_ = false;
  bool kernel_sends_ = false;
  // Size of a record that OpenSSL has prepared but not reported as sent. OpenSSL must be called
  // with the same bytes again.
  size_t attempted_ = 0;
  std::vector<std::byte> staged_;  // combines small pieces into one record
  uint64_t sent_with_key_ = 0;
  uint64_t key_changes_ = 0;
  // The error of all further calls. Receiving still works after sending has failed.
  Status broken_;
  Status send_broken_;
};

}  // namespace horoscale
