// The tags of messages on an authenticated stream: one for each header, and one for each payload
// except those of unsealed chunks.
//
//     header, tag, payload            a chunk of tensors: it can't be moved or cut, but changed
//     header, tag, payload, tag       everything else
//
// Headers have their own tags, so that a modified length is never used.
#pragma once

#include "transport/message/message.h"

namespace horoscale {

inline bool HasPayloadTag(const MessageHeader& header) {
  return header.bytes > 0 && (header.type != MessageType::kChunk || header.sealed != 0);
}

}  // namespace horoscale
