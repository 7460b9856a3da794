// The store's frames: a length of 4 bytes (little-endian, of what follows), a verb, its fields.
//
//     SET    verb 1, key length (4 bytes), key, value     → REPLY ok | error
//     GET    verb 2, wait in milliseconds (4), key        → REPLY ok with the value | error
//     REPLY  verb 3, status code (1), value or message
//     WILL   verb 4, as SET, but at the end of this connection → REPLY ok | error
//
// A client has one request at a time on its way. Pure functions; what they decode points into the
// frame that they were given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace horoscale {

inline constexpr size_t kStoreMaxKeyBytes = 1024;
inline constexpr size_t kStoreMaxValueBytes = 1 << 20;
inline constexpr size_t kStoreHeaderBytes = 4;
inline constexpr size_t kStoreMaxBodyBytes = kStoreMaxValueBytes + kStoreMaxKeyBytes + 5;

enum class StoreVerb : uint8_t { kSet = 1, kGet = 2, kReply = 3, kWill = 4 };

struct StoreRequest {
  StoreVerb verb = StoreVerb::kGet;
  std::string_view key;
  std::span<const std::byte> value;  // of a SET or WILL
  uint32_t wait_ms = 0;              // of a GET
};

struct StoreReply {
  StatusCode code = StatusCode::kOk;
  std::span<const std::byte> payload;  // the value, or the error's message
};

// Whether a key and a value are within the bounds of the protocol.
Status CheckStoreKey(std::string_view key);
Status CheckStoreValue(std::string_view key, std::span<const std::byte> value);

// Whole frames, header included. The arguments must be within the bounds.
std::vector<std::byte> EncodeSet(std::string_view key, std::span<const std::byte> value);
std::vector<std::byte> EncodeWill(std::string_view key, std::span<const std::byte> value);
std::vector<std::byte> EncodeGet(std::string_view key, uint32_t wait_ms);
std::vector<std::byte> EncodeReply(StatusCode code, std::span<const std::byte> payload);

// The size of the body that follows a header; kProtocol if it is none or beyond the bound.
Result<size_t> DecodeStoreHeader(std::span<const std::byte, kStoreHeaderBytes> header);
Result<StoreRequest> DecodeStoreRequest(std::span<const std::byte> body);
Result<StoreReply> DecodeStoreReply(std::span<const std::byte> body);

}  // namespace horoscale
