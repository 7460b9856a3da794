// The frames by which two members of a process set pass a message from one to the other, as values
// and as bytes. Not negotiated: no coordinator hears of them. docs/messages.md tells the story.
//
// A message is numbered by its sender, 1, 2, 3, … for each receiver. A small one comes at once:
//   kEager      sender → receiver   the envelope and all bytes
//   kCredit     receiver → sender   so many bytes of eager messages have found their receive
// Others are offered, and move when a receive wants them:
//   kOffer      sender → receiver   the envelope, and where the bytes lie
//   kClear      receiver → sender   "send them"; where the receiver can't read them there
//   kData       sender → receiver   some of them, in order
//   kTaken      receiver → sender   how many it has by now
//   kStage      receiver → sender   "copy them into our area, while I read them"
//   kConfirmed  sender → receiver   what was read at the sender's place was the message's until
//   then
//   kWithdrawn  sender → receiver   it can't be sent after all, and why; where kClear was said
// Between CUDA tensors that NCCL can carry it between, both launch it (core/launch_order.h):
//   kPropose    receiver → sender   the receiver's stamp for it
//   kLaunch     sender → receiver   the stamp that is agreed on
// A message that its receive can't take, of either form, is answered by
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
inline constexpr size_t kMaxEagerBytes = 16 << 10;  // in a host
inline constexpr size_t kMaxEagerBytesBetweenHosts = 64 << 10;
inline constexpr size_t kMaxDataFrameBytes = 128 << 10;
inline constexpr size_t kMaxReasonBytes = 4096;

// What a receive has to agree with: channel and tag choose it, type and bytes have to be equal.
struct Envelope {
  int64_t tag = 0;
  uint8_t channel = 0;  // of tags: users' own, and what bindings send beside
  DataType dtype = DataType::kUint8;
  uint64_t bytes = 0;
  bool operator==(const Envelope&) const = default;
};

// Where the bytes of an offered message lie.
struct MessageSource {
  enum class Kind : uint8_t {
    kPrivate = 0,  // at this address of the sender
    kShared = 1,   // at this offset of its shared memory
    kDevice = 2,   // on a device of its: by NCCL, or in frames
    kStaged = 3,   // at this address of the sender, which can help (transport/memory/staging.h)
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
  Envelope envelope;     // kEager, kOffer; kRefused: of the receive
  MessageSource source;  // kOffer
  uint64_t bytes = 0;    // kTaken, kCredit
  uint64_t stamp = 0;    // kPropose, kLaunch
  uint32_t use = 0;      // kStage: of the area
  // kEager, kData; kWithdrawn: why, in UTF-8. In the frame that was decoded.
  std::span<const std::byte> payload;
};

std::vector<std::byte> Encode(const MessageFrame& frame);
// The payload is a part of `bytes`.
Result<MessageFrame> DecodeMessageFrame(std::span<const std::byte> bytes);

}  // namespace horoscale
