#include "runtime/operation.h"

#include <array>
#include <cstdint>
#include <string>

#include "base/rank_list.h"
#include "core/mailbox.h"

namespace horoscale {
namespace {

// Describes channels other than the users'; the bindings define them
// (horoscale/common/messages.py).
std::string ChannelText(uint8_t channel) {
  static constexpr std::array<const char*, 6> kTexts = {"",
                                                        " (a gradient)",
                                                        " (an object)",
                                                        " (an object)",
                                                        " (of torch.distributed)",
                                                        " (of monitored_barrier)"};
  if (channel < kTexts.size()) return kTexts[channel];
  return ", channel " + std::to_string(channel);
}

}  // namespace

std::string Operation::DisplayName() const {
  if (new_set != nullptr) {
    return "add_process_set of " + RankList(new_set->ranks) + " by its members" +
           (new_set->tag.empty() ? "" : ", tag \"" + new_set->tag + "\"");
  }
  if (message == nullptr) {
    const OpKind kind = request.signature.kind;
    const uint64_t position = index.load();
    if (request.name.empty() && position == 0) return std::string(Name(kind));
    return horoscale::DisplayName(request.name, kind, position);
  }
  const std::string whom =
      message->peer == kAnyPeer ? "any rank" : "rank " + std::to_string(message->peer);
  const char* const what = message->is_send    ? "send to "
                           : message->released ? "release of a view from "
                           : message->is_view  ? "recv_view from "
                                               : "recv from ";
  return what + whom + ", tag " + std::to_string(message->envelope.tag) +
         ChannelText(message->envelope.channel);
}

}  // namespace horoscale
