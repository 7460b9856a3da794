// A Request inside a message. Used by the codec alone.
#pragma once

#include "core/request.h"
#include "core/wire.h"

namespace horoscale {

// What the smallest request takes, to check counts before anything is allocated.
inline constexpr size_t kMinRequestBytes = 26;

void WriteRequest(const Request& request, WireWriter& out);
Request ReadRequest(WireReader& in);

}  // namespace horoscale
