// What one rank can see to be wrong with its own request, before anybody else hears of it.
#pragma once

#include <vector>

#include "base/status.h"
#include "runtime/operation.h"

namespace horoscale {

// Kind, types, shapes, memory. kInvalidArgument says what is wrong and what would be right.
Status ValidateRequest(const Operation& operation);

// The request as one of a set with these sorted global ranks: membership, root, splits, own rows.
Status ValidateMembership(const Operation& operation, const std::vector<int>& ranks,
                          const std::vector<int>& order, int self);

// Of an operation that is done: whether its results have the rows that the caller has room for.
Status CheckResults(const Operation& operation);

}  // namespace horoscale
