#include "core/message_frames.h"

#include <limits>
#include <string>

#include "core/launch_order.h"
#include "core/wire.h"

namespace horoscale {
namespace {

using Type = MessageFrame::Type;

constexpr uint64_t kMaxArea = std::numeric_limits<int64_t>::max();

bool HasStamp(Type type) { return type == Type::kPropose || type == Type::kLaunch; }

bool HasPayload(Type type) {
  return type == Type::kEager || type == Type::kData || type == Type::kWithdrawn;
}

bool HasEnvelope(Type type) {
  return type == Type::kEager || type == Type::kOffer || type == Type::kRefused;
}

void WriteEnvelope(WireWriter& out, const Envelope& envelope) {
  out.Varint(static_cast<uint64_t>(envelope.tag));
  out.Byte(envelope.channel);
  out.Byte(static_cast<uint8_t>(envelope.dtype));
  out.Varint(envelope.bytes);
}

Envelope ReadEnvelope(WireReader& in) {
  Envelope envelope;
  envelope.tag = static_cast<int64_t>(in.Varint(kMaxTag));
  envelope.channel = in.Byte();
  const uint8_t dtype = in.Byte();
  if (dtype >= kNumDataTypes) {
    in.Fail("its element type is unknown");
    return envelope;
  }
  envelope.dtype = static_cast<DataType>(dtype);
  envelope.bytes = in.Varint(kMaxMessageDataBytes);
  if (envelope.bytes % SizeOf(envelope.dtype) != 0) {
    in.Fail("its size is not a multiple of the element size");
  }
  return envelope;
}

MessageSource ReadSource(WireReader& in) {
  MessageSource source;
  const uint64_t kind = in.Varint(static_cast<uint64_t>(MessageSource::Kind::kStaged));
  source.kind = static_cast<MessageSource::Kind>(kind);
  source.place = in.Varint();
  if (source.kind == MessageSource::Kind::kStaged) source.area = in.Varint(kMaxArea);
  return source;
}

}  // namespace

std::vector<std::byte> Encode(const MessageFrame& frame) {
  WireWriter out;
  out.Byte(static_cast<uint8_t>(frame.type));
  if (frame.type != Type::kCredit) out.Varint(frame.number);
  if (HasEnvelope(frame.type)) WriteEnvelope(out, frame.envelope);
  if (frame.type == Type::kOffer) {
    out.Varint(static_cast<uint64_t>(frame.source.kind));
    out.Varint(frame.source.place);
    if (frame.source.kind == MessageSource::Kind::kStaged) out.Varint(frame.source.area);
  }
  if (frame.type == Type::kTaken || frame.type == Type::kCredit) out.Varint(frame.bytes);
  if (HasStamp(frame.type)) out.Varint(frame.stamp);
  if (frame.type == Type::kStage) out.Varint(frame.use);
  if (HasPayload(frame.type)) out.Rest(frame.payload);
  return out.Take();
}

Result<MessageFrame> DecodeMessageFrame(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  MessageFrame frame;
  const uint8_t type = in.Byte();
  if (type > static_cast<uint8_t>(Type::kWithdrawn)) in.Fail("its type is unknown");
  if (in.ok()) frame.type = static_cast<Type>(type);
  if (frame.type != Type::kCredit) frame.number = in.Varint();
  if (HasEnvelope(frame.type)) frame.envelope = ReadEnvelope(in);
  if (frame.type == Type::kOffer) frame.source = ReadSource(in);
  if (frame.type == Type::kTaken || frame.type == Type::kCredit) {
    frame.bytes = in.Varint(kMaxMessageDataBytes);
  }
  if (HasStamp(frame.type)) frame.stamp = in.Varint(kMaxLaunchStamp);
  if (frame.type == Type::kStage) {
    frame.use = static_cast<uint32_t>(in.Varint(std::numeric_limits<uint32_t>::max()));
  }
  if (HasPayload(frame.type)) frame.payload = in.Rest();
  if (frame.type == Type::kEager && (frame.payload.size() != frame.envelope.bytes ||
                                     frame.payload.size() > kMaxEagerBytesBetweenHosts)) {
    in.Fail("its size differs from the size in its header");
  }
  if (frame.type == Type::kData &&
      (frame.payload.empty() || frame.payload.size() > kMaxDataFrameBytes)) {
    in.Fail("its size is invalid");
  }
  if (frame.type == Type::kWithdrawn && frame.payload.size() > kMaxReasonBytes) {
    in.Fail("its reason is too long");
  }
  if (in.left() > 0) in.Fail("trailing bytes");
  if (!in.ok()) return Status::Protocol(std::string("invalid message frame: ") + in.reason());
  return frame;
}

}  // namespace horoscale
