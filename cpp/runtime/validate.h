// Local validation of requests, before they are reported to other ranks.
#pragma once

#include <vector>

#include "base/status.h"
#include "runtime/operation.h"

namespace horoscale {

// Validates kind, types, shapes and memory. kInvalidArgument describes the error and the expected
// value.
Status ValidateRequest(const Operation& operation);

// Validates the request for a set with these sorted global ranks: membership, root, splits, own
// rows.
Status ValidateMembership(const Operation& operation, const std::vector<int>& ranks,
                          const std::vector<int>& order, int self);

// Checks that the results of a finished operation have the number of rows that the caller expects.
Status CheckResults(const Operation& operation);

}  // namespace horoscale
