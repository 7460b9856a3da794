// Bytes of the control messages: versioned by the link's handshake, bounded, and strict.
//
// Decoding never trusts a length: every count is checked against what is left of the frame and
// against the limits below, unknown enumerators and trailing bytes are errors. docs/protocol.md has
// the layout. Integers are LEB128 varints, signed ones zigzag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "core/messages.h"

namespace horoscale {

inline constexpr size_t kMaxNameBytes = 64 * 1024;
inline constexpr size_t kMaxMessageBytes = 16 * 1024 * 1024;
inline constexpr size_t kMaxDimensions = 64;

std::vector<std::byte> Encode(const Report& report);
std::vector<std::byte> Encode(const PlanEntry& entry);
std::vector<std::byte> Encode(const Goodbye& goodbye);

Result<Report> DecodeReport(std::span<const std::byte> bytes);
Result<PlanEntry> DecodePlanEntry(std::span<const std::byte> bytes);
Result<Goodbye> DecodeGoodbye(std::span<const std::byte> bytes);

}  // namespace horoscale
