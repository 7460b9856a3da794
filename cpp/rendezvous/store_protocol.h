// The store's frames: a length of 4 bytes (little-endian, of the following bytes), a verb, its
// fields.
//
//     SET    verb 1, key length (4 bytes), key, value     → REPLY ok | error
//     GET    verb 2, wait in milliseconds (4), key        → REPLY ok with the value | error
//     REPLY  verb 3, status code (1), value or message
//     GATHER verb 4, wait in milliseconds (4), place (4), count (4),
//            four texts (key, label, unless, will), value → REPLY ok with all values | error
//
// A text is its length (4) and its bytes. The reply to a GATHER has a round (8), the number of
// values (4) and, for each, its place (4), its length (4) and its bytes; one that is late has the
// places that are missing (4 each).
//
// A client has at most one outstanding request. Pure functions; decoded values point into the given
// frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "rendezvous/store.h"

namespace horoscale {

inline constexpr size_t kStoreMaxKeyBytes = 1024;
inline constexpr size_t kStoreMaxValueBytes = 1 << 20;
inline constexpr size_t kStoreHeaderBytes = 4;
inline constexpr size_t kStoreMaxBodyBytes = kStoreMaxValueBytes + 4 * kStoreMaxKeyBytes + 64;
// For a reply, which may contain every rank's value.
inline constexpr size_t kStoreMaxReplyBytes = size_t{1} << 30;
inline constexpr uint32_t kStoreMaxParties = 1 << 20;  // of a gathering

enum class StoreVerb : uint8_t { kSet = 1, kGet = 2, kReply = 3, kGather = 4 };

struct StoreRequest {
  StoreVerb verb = StoreVerb::kGet;
  std::string_view key;
  std::span<const std::byte> value;  // of a SET
  uint32_t wait_ms = 0;              // of a GET or GATHER
  GatherRequest gather;              // of a GATHER, with its own key and value
};

struct StoreReply {
  StatusCode code = StatusCode::kOk;
  std::span<const std::byte> payload;  // the value, or the error's message
};

// Check that a key and a value are within the protocol's limits.
Status CheckStoreKey(std::string_view key);
Status CheckStoreValue(std::string_view key, std::span<const std::byte> value);
Status CheckGather(const GatherRequest& request);

// Return whole frames, including the header. The arguments must be within the limits.
std::vector<std::byte> EncodeSet(std::string_view key, std::span<const std::byte> value);
std::vector<std::byte> EncodeGet(std::string_view key, uint32_t wait_ms);
std::vector<std::byte> EncodeGather(const GatherRequest& request, uint32_t wait_ms);
std::vector<std::byte> EncodeReply(StatusCode code, std::span<const std::byte> payload);

// The payloads of replies to a GATHER with this `count`.
std::vector<std::byte> EncodeGathered(const Gathered& gathered);
std::vector<std::byte> EncodePlaces(std::span<const int> places);
Result<Gathered> DecodeGathered(std::span<const std::byte> payload, uint32_t count);
Result<std::vector<int>> DecodePlaces(std::span<const std::byte> payload, uint32_t count);

// The size of the body that follows a header; kProtocol if it is zero or exceeds the limit.
Result<size_t> DecodeStoreHeader(std::span<const std::byte, kStoreHeaderBytes> header,
                                 size_t most = kStoreMaxBodyBytes);
Result<StoreRequest> DecodeStoreRequest(std::span<const std::byte> body);
Result<StoreReply> DecodeStoreReply(std::span<const std::byte> body);

}  // namespace horoscale
