#include "runtime/operation.h"

#include "base/rank_list.h"
#include "core/mailbox.h"

namespace horoscale {

std::string Operation::DisplayName() const {
  if (new_set != nullptr) {
    return "add_process_set of " + RankList(new_set->ranks) + " by its members" +
           (new_set->tag.empty() ? "" : ", tag \"" + new_set->tag + "\"");
  }
  if (message == nullptr) return request.DisplayName();
  const std::string whom =
      message->peer == kAnyPeer ? "any rank" : "rank " + std::to_string(message->peer);
  const uint8_t channel = message->envelope.channel;
  const char* const what = message->is_send    ? "send to "
                           : message->released ? "release of a view from "
                           : message->is_view  ? "recv_view from "
                                               : "recv from ";
  return what + whom + ", tag " + std::to_string(message->envelope.tag) +
         (channel == 0 ? "" : ", channel " + std::to_string(channel));
}

}  // namespace horoscale
