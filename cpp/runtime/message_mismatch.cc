#include "runtime/message_mismatch.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace horoscale {

std::string Describe(const Envelope& envelope) {
  return std::to_string(envelope.bytes / SizeOf(envelope.dtype)) + " elements of " +
         std::string(Name(envelope.dtype)) + " (" + std::to_string(envelope.bytes) + " bytes)";
}

Status Mismatch(const OperationPtr& operation, int receiver, int sender, const Envelope& wanted,
                const Envelope& sent) {
  std::vector<int> ranks = {std::min(sender, receiver), std::max(sender, receiver)};
  if (sender == receiver) ranks.pop_back();
  const std::string name = operation->DisplayName();
  return {StatusCode::kMismatch,
          name + " on process set " + std::to_string(operation->process_set_id) + ": rank " +
              std::to_string(sender) + " sends " + Describe(sent) + ", but rank " +
              std::to_string(receiver) + " receives " + Describe(wanted),
          {std::move(ranks), operation->process_set_id, name}};
}

}  // namespace horoscale
