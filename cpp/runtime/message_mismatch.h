// Errors for two ranks that disagree about a message.
#pragma once

#include <string>

#include "base/status.h"
#include "core/message_frames.h"
#include "runtime/operation.h"

namespace horoscale {

// "3 elements of float32 (12 bytes)"
std::string Describe(const Envelope& envelope);

// The error for an operation on one of the two ranks.
Status Mismatch(const OperationPtr& operation, int receiver, int sender, const Envelope& wanted,
                const Envelope& sent);

}  // namespace horoscale
