// Codec of the control messages: versioned by the link's handshake, bounded, and strict.
//
// Decoding never trusts a length: every count is checked against the remaining bytes of the frame
// and the limits below. Unknown enumerators and trailing bytes are errors. docs/protocol.md has the
// layout. Integers are LEB128 varints, signed ones zigzag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/messages.h"

namespace horoscale {

inline constexpr size_t kMaxNameBytes = 64 * 1024;
inline constexpr size_t kMaxMessageBytes = 16 * 1024 * 1024;
inline constexpr size_t kMaxDimensions = 64;
inline constexpr size_t kMaxTensors = 64 * 1024;             // of one request
inline constexpr size_t kMaxRequestBytes = 4 * 1024 * 1024;  // encoded
inline constexpr int64_t kMaxRequestDataBytes = int64_t{1} << 60;
inline constexpr size_t kMaxRanks = 1024 * 1024;
inline constexpr size_t kMaxPlanItems = 4096;  // of one entry
inline constexpr uint32_t kMaxSlots = 2 * 1024 * 1024;
inline constexpr size_t kMaxPostBytes = 64 * 1024;  // of tensors
inline constexpr size_t kMaxTextBytes = 64 * 1024;  // of a failure; longer texts are truncated
// Pending units of one member on one set.
inline constexpr size_t kMaxPendingUnits = 256 * 1024;

// kInvalidArgument if the request can't be encoded; the message names what is too large or not
// finite.
Status CheckLimits(const Request& request);
// An upper bound of the encoded size of a request in a message.
size_t EncodedSizeBound(std::string_view name, const Signature& signature);

std::vector<std::byte> Encode(const Report& report);
std::vector<std::byte> Encode(const GroupReport& report);
// Encodes a post with the member's tensors, at most kMaxPostBytes. May reuse the memory of an old
// message.
std::vector<std::byte> Encode(const Post& post, std::span<const std::byte> values,
                              std::vector<std::byte> old = {});
std::vector<std::byte> Encode(const PlanEntry& entry);
std::vector<std::byte> Encode(const Goodbye& goodbye);
std::vector<std::byte> Encode(const StallNotice& notice);
std::vector<std::byte> Encode(const LossNotice& notice);

Result<Report> DecodeReport(std::span<const std::byte> bytes);
Result<GroupReport> DecodeGroupReport(std::span<const std::byte> bytes);
struct PostedValues {
  Post post;
  std::span<const std::byte> values;  // points into the frame
};
Result<PostedValues> DecodePost(std::span<const std::byte> bytes);
Result<PlanEntry> DecodePlanEntry(std::span<const std::byte> bytes);
Result<Goodbye> DecodeGoodbye(std::span<const std::byte> bytes);
Result<StallNotice> DecodeStallNotice(std::span<const std::byte> bytes);
Result<LossNotice> DecodeLossNotice(std::span<const std::byte> bytes);

}  // namespace horoscale
