// TlsLayer: TLS 1.3 on a stream, between two sides that have a key in common and no certificates.
// Each connection agrees on keys of its own (ECDHE), so that who learns the common key later reads
// nothing of it.
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

  // After so many bytes a sender changes its key: long before AES-GCM's limit.
  static constexpr uint64_t kBytesOfKey = uint64_t{1} << 36;

  // `fd` is the stream's and stays so; `peer` is for errors. kUnimplemented if there is no library.
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

  // Whether the kernel encrypts what is sent.
  bool kernel_sends() const { return kernel_sends_; }
  uint64_t key_changes() const { return key_changes_; }

 private:
  TlsLayer(const TlsLibrary& library, int fd, std::string peer, const TlsKey& key,
           uint64_t bytes_of_key);

  // All of them with a TlsLibrary::Use.
  Result<bool> Shake();
  Status OnHandshakeDone();
  Status ChangeKeyIfDue();
  // Why a call failed.
  Status Failure(const char* doing, int error) const;

  const TlsLibrary& library_;
  const int fd_;
  const std::string peer_;
  TlsKey key_;
  const uint64_t bytes_of_key_;
  Ssl* ssl_ = nullptr;
  bool is_ready_ = false;  // the handshake is done
  short awaited_ = POLLIN;
  bool has_pending_ = false;
  bool kernel_sends_ = false;
  // OpenSSL has made a record of so many bytes that have not been reported as sent: it has to be
  // given the same ones again.
  size_t attempted_ = 0;
  std::vector<std::byte> staged_;  // small pieces become one record
  uint64_t sent_with_key_ = 0;
  uint64_t key_changes_ = 0;
  // What a call says from now on. Who can't send any more can still receive.
  Status broken_;
  Status send_broken_;
};

}  // namespace horoscale
