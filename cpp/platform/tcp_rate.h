// The kernel's measurements of a TCP connection.
#pragma once

#include "platform/byte_stream.h"

namespace horoscale {

// The recent delivery rate in bytes per second while there was enough data to send; 0 if unknown.
double DeliveryRate(const ByteStream& stream);

}  // namespace horoscale
