#include "core/set_creation_frames.h"

#include <limits>

#include "core/codec.h"
#include "core/wire.h"

namespace horoscale {
namespace {

using Type = SetCreationFrame::Type;

bool HasCall(Type type) {
  return type == Type::kAsk || type == Type::kMade || type == Type::kRefused;
}
bool HasNumber(Type type) {
  return type == Type::kMade || type == Type::kReady || type == Type::kBegin;
}
bool HasSet(Type type) { return type == Type::kAsk || type == Type::kWithdrawn; }
bool HasCause(Type type) { return type == Type::kRefused || type == Type::kWithdrawn; }

void WriteRanks(WireWriter& out, const std::vector<int>& ranks) {
  out.Varint(ranks.size());
  for (const int rank : ranks) out.Varint(static_cast<uint64_t>(rank));
}

std::vector<int> ReadRanks(WireReader& in) {
  std::vector<int> ranks(in.Count(kMaxRanks, 1));
  for (int& rank : ranks) rank = static_cast<int>(in.Varint(kMaxRanks));
  return ranks;
}

void WriteCause(WireWriter& out, const Status& cause) {
  out.Varint(static_cast<uint64_t>(cause.code()));
  out.Text(std::string_view(cause.message()).substr(0, kMaxTextBytes));
  WriteRanks(out, cause.detail().ranks);
}

Status ReadCause(WireReader& in) {
  const uint64_t code = in.Varint(static_cast<uint64_t>(kLastStatusCode));
  if (code == 0) in.Fail("it reports a failure with code 0");
  std::string message = in.Text(kMaxTextBytes);
  std::vector<int> ranks = ReadRanks(in);
  if (!in.ok()) return {};
  return {static_cast<StatusCode>(code), std::move(message), {std::move(ranks), -1, ""}};
}

}  // namespace

std::vector<std::byte> Encode(const SetCreationFrame& frame) {
  WireWriter out;
  out.Byte(static_cast<uint8_t>(frame.type));
  if (HasCall(frame.type)) out.Varint(frame.call);
  if (HasNumber(frame.type)) out.Varint(frame.number);
  if (HasSet(frame.type)) {
    WriteRanks(out, frame.set.ranks);
    out.Byte(frame.set.distinct ? 1 : 0);
    out.Text(frame.set.tag);
  }
  if (HasCause(frame.type)) WriteCause(out, frame.cause);
  return out.Take();
}

Result<SetCreationFrame> DecodeSetCreationFrame(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  SetCreationFrame frame;
  const uint8_t type = in.Byte();
  if (type > static_cast<uint8_t>(Type::kWithdrawn)) in.Fail("its type is unknown");
  if (bytes.size() > kMaxMessageBytes) in.Fail("it is too long");
  if (in.ok()) frame.type = static_cast<Type>(type);
  if (HasCall(frame.type)) frame.call = in.Varint();
  if (HasNumber(frame.type)) {
    frame.number = static_cast<uint32_t>(in.Varint(std::numeric_limits<uint32_t>::max()));
  }
  if (HasSet(frame.type)) {
    frame.set.ranks = ReadRanks(in);
    frame.set.distinct = in.Varint(1) == 1;
    frame.set.tag = in.Text(kMaxNameBytes);
  }
  if (HasCause(frame.type)) frame.cause = ReadCause(in);
  if (in.left() > 0) in.Fail("trailing bytes");
  if (!in.ok()) {
    return Status::Protocol(std::string("invalid frame of a process set's creation: ") +
                            in.reason());
  }
  return frame;
}

}  // namespace horoscale
