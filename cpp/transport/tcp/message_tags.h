// Which tags the messages of an authenticated stream have: each header, and each payload but those
// of chunks that are not sealed.
//
//     header, tag, payload            a chunk of tensors: it can't be moved or cut, but changed
//     header, tag, payload, tag       everything else
//
// A header has a tag of its own so that no length is believed that was changed on the way.
#pragma once

#include "transport/message/message.h"

namespace horoscale {

inline bool HasPayloadTag(const MessageHeader& header) {
  return header.bytes > 0 && (header.type != MessageType::kChunk || header.sealed != 0);
}

}  // namespace horoscale
