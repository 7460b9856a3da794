// What the kernel has measured of a TCP connection.
#pragma once

#include "platform/byte_stream.h"

namespace horoscale {

// Bytes a second that have lately reached the peer while there was enough to send; 0 if unknown.
double DeliveryRate(const ByteStream& stream);

}  // namespace horoscale
