// Encodes a Request in a message. Used only by the codec.
#pragma once

#include "core/request.h"
#include "core/wire.h"

namespace horoscale {

// The size of the smallest request, to check counts before anything is allocated.
inline constexpr size_t kMinRequestBytes = 26;

void WriteRequest(const Request& request, WireWriter& out);
Request ReadRequest(WireReader& in);

}  // namespace horoscale
