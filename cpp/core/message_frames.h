// The frames with which two members of a process set transfer a message, and their codec. Messages
// are not negotiated: no coordinator is involved. docs/messages.md describes the protocol.
//
// The sender numbers its messages 1, 2, 3, … per receiver. A small message is sent eagerly:
//   kEager      sender → receiver   the envelope and all bytes
//   kCredit     receiver → sender   so many bytes of eager messages have found their receive
// Larger messages are offered, and transferred when a receive requests them:
//   kOffer      sender → receiver   the envelope, and where the bytes lie
//   kClear      receiver → sender   "send them"; where the receiver can't read them there
//   kData       sender → receiver   some of them, in order
//   kTaken      receiver → sender   how many it has by now
//   kStage      receiver → sender   "copy them into our area, while I read them"
//   kConfirmed  sender → receiver   what was read at the sender's place was the message's until
//   then
//   kWithdrawn  sender → receiver   it can't be sent after all, and why; where kClear was said
// If NCCL can transfer it between two CUDA tensors, both members launch it (core/launch_order.h):
//   kPropose    receiver → sender   the receiver's stamp for it
//   kLaunch     sender → receiver   the stamp that is agreed on
// A message of either form that does not fit its receive is answered with
//   kRefused    receiver → sender   what the receive wanted
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace horoscale {

inline constexpr int64_t kMaxTag = (int64_t{1} << 62) - 1;
inline constexpr uint64_t kMaxMessageDataBytes = uint64_t{1} << 60;
inline constexpr size_t kMaxEagerBytes = 16 << 10;  // within a host
inline constexpr size_t kMaxEagerBytesBetweenHosts = 64 << 10;
inline constexpr size_t kMaxDataFrameBytes = 128 << 10;
inline constexpr size_t kMaxReasonBytes = 4096;

// The envelope of a message: channel and tag select the receive; type and bytes must be equal.
struct Envelope {
  int64_t tag = 0;
  uint8_t channel = 0;  // of tags: that of users, and those that bindings use internally
  DataType dtype = DataType::kUint8;
  uint64_t bytes = 0;
  bool operator==(const Envelope&) const = default;
};

// The location of an offered message.
struct MessageSource {
  enum class Kind : uint8_t {
    kPrivate = 0,  // private memory at this address of the sender
    kShared = 1,   // at this offset in its shared memory
    kDevice = 2,   // on a device of the sender: transferred by NCCL, or in frames
    kStaged = 3,   // at this address of the sender, which supports staging
                   // (transport/memory/staging.h)
  };
  Kind kind = Kind::kPrivate;
  uint64_t place = 0;
  uint64_t area = 0;  // kStaged: the offset of its area in the sender's shared memory
  bool operator==(const MessageSource&) const = default;
};

struct MessageFrame {
  enum class Type : uint8_t {
    kEager = 0,
    kOffer = 1,
    kClear = 2,
    kData = 3,
    kTaken = 4,
    kConfirmed = 5,
    kRefused = 6,
    kCredit = 7,
    kPropose = 8,
    kLaunch = 9,
    kStage = 10,
    kWithdrawn = 11,
  };
  Type type = Type::kEager;
  uint64_t number = 0;   // of the message; kCredit: none
  Envelope envelope;     // kEager, kOffer; for kRefused, that of the receive
  MessageSource source;  // kOffer
  uint64_t bytes = 0;    // kTaken, kCredit
  uint64_t stamp = 0;    // kPropose, kLaunch
  uint32_t use = 0;      // kStage: of the area
  // kEager, kData; for kWithdrawn the reason in UTF-8. Points into the decoded frame.
  std::span<const std::byte> payload;
};

std::vector<std::byte> Encode(const MessageFrame& frame);
// The payload points into `bytes`.
Result<MessageFrame> DecodeMessageFrame(std::span<const std::byte> bytes);

}  // namespace horoscale
