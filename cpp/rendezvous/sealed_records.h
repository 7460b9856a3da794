// SealedRecords: a stream layer that authenticates a connection without encrypting it. For
// connections with little traffic, because every byte is copied.
//
//     length (4 bytes, little-endian), its tag (16), so many bytes, their tag (16)
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "platform/byte_stream.h"
#include "platform/stream_layer.h"
#include "rendezvous/seal.h"

namespace horoscale {

class SealedRecords final : public StreamLayer {
 public:
  static constexpr size_t kMaxRecordBytes = 64 << 10;

  // `fd` is owned by the stream.
  SealedRecords(int fd, std::string peer, const MessageKeys& keys)
      : fd_(fd), peer_(std::move(peer)), seal_(keys.send), opener_(keys.receive) {}

  Result<size_t> Send(std::span<const std::span<const std::byte>> pieces) override;
  Result<size_t> Receive(std::span<const std::span<std::byte>> pieces) override;
  bool HasPending() const override { return opened_ < payload_.size() || !broken_.ok(); }

 private:
  static constexpr size_t kLengthBytes = 4;
  static constexpr size_t kHeaderBytes = kLengthBytes + Seal::kTagBytes;

  void MakeRecord(std::span<const std::span<const std::byte>> pieces);
  // Continues receiving; returns true when a record's payload is complete.
  Result<bool> ReceiveRecord();
  Status OpenHeader();
  Status OpenPayload();

  const int fd_;
  const std::string peer_;
  Seal seal_;
  Seal opener_;
  std::vector<std::byte> record_;                                        // being sent
  size_t gone_ = 0;                                                      // of it
  size_t taken_ = 0;                                                     // user bytes in it
  std::vector<std::byte> input_ = std::vector<std::byte>(kHeaderBytes);  // being received
  size_t received_ = 0;                                                  // of it
  bool in_payload_ = false;
  std::vector<std::byte> payload_;  // authenticated
  size_t opened_ = 0;               // bytes of it that were passed to the user
  Status broken_;                   // authentication failed: nothing more is read
};

// Makes an authenticated stream, whose message_keys() are known, authenticate all data in records.
void UseSealedRecords(ByteStream& stream);

}  // namespace horoscale
