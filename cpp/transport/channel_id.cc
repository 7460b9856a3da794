#include "transport/channel_id.h"

namespace horoscale {

std::string Describe(ChannelId channel) {
  return "process set " + std::to_string(channel.process_set) + " (incarnation " +
         std::to_string(channel.incarnation) + ")";
}

}  // namespace horoscale
