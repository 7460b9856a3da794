#include "rendezvous/store_protocol.h"

#include <optional>
#include <string>

#include "base/bytes.h"

namespace horoscale {
namespace {

void AppendU32(std::vector<std::byte>& frame, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8)
    frame.push_back(static_cast<std::byte>(value >> shift));
}

void AppendBytes(std::vector<std::byte>& frame, std::span<const std::byte> bytes) {
  frame.insert(frame.end(), bytes.begin(), bytes.end());
}

std::vector<std::byte> StartFrame(StoreVerb verb, size_t field_bytes) {
  std::vector<std::byte> frame;
  frame.reserve(kStoreHeaderBytes + 1 + field_bytes);
  AppendU32(frame, static_cast<uint32_t>(1 + field_bytes));
  frame.push_back(static_cast<std::byte>(verb));
  return frame;
}

uint32_t LoadU32(std::span<const std::byte> bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
  return value;
}

// Consumes fields from the front of a body; a field is empty if the body is too short for it.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> body) : rest_(body) {}

  std::optional<uint8_t> U8() {
    if (rest_.empty()) return std::nullopt;
    const uint8_t value = std::to_integer<uint8_t>(rest_[0]);
    rest_ = rest_.subspan(1);
    return value;
  }

  std::optional<uint32_t> U32() {
    if (rest_.size() < 4) return std::nullopt;
    const uint32_t value = LoadU32(rest_);
    rest_ = rest_.subspan(4);
    return value;
  }

  // With a length prefix.
  std::optional<std::string_view> SizedText() {
    const std::optional<uint32_t> bytes = U32();
    return bytes ? Text(*bytes) : std::nullopt;
  }

  std::optional<std::string_view> Text(size_t bytes) {
    if (rest_.size() < bytes) return std::nullopt;
    const std::string_view text(reinterpret_cast<const char*>(rest_.data()), bytes);
    rest_ = rest_.subspan(bytes);
    return text;
  }

  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

Status TooShort() { return Status::Protocol("truncated store frame"); }

void AppendText(std::vector<std::byte>& frame, std::string_view text) {
  AppendU32(frame, static_cast<uint32_t>(text.size()));
  AppendBytes(frame, AsBytes(text));
}

Result<StoreRequest> DecodeSet(Fields& fields) {
  const std::optional<std::string_view> key = fields.SizedText();
  if (!key) return TooShort();
  HS_RETURN_IF_ERROR(CheckStoreKey(*key));
  HS_RETURN_IF_ERROR(CheckStoreValue(*key, fields.rest()));
  return StoreRequest{
      .verb = StoreVerb::kSet, .key = *key, .value = fields.rest(), .wait_ms = 0, .gather = {}};
}

Result<StoreRequest> DecodeGather(Fields& fields) {
  const std::optional<uint32_t> wait_ms = fields.U32();
  const std::optional<uint32_t> place = fields.U32();
  const std::optional<uint32_t> count = fields.U32();
  const std::optional<std::string_view> key = fields.SizedText();
  const std::optional<std::string_view> label = fields.SizedText();
  const std::optional<std::string_view> unless = fields.SizedText();
  const std::optional<std::string_view> will = fields.SizedText();
  // Only a field with too large a length is missing; the following fields are read from the rest.
  if (!count || !key || !label || !unless || !will) return TooShort();
  const GatherRequest gather = {*key, *place, *count, fields.rest(), *label, *unless, *will};
  HS_RETURN_IF_ERROR(CheckGather(gather));
  return StoreRequest{
      .verb = StoreVerb::kGather, .key = {}, .value = {}, .wait_ms = *wait_ms, .gather = gather};
}

Result<StoreRequest> DecodeGet(Fields& fields) {
  const std::optional<uint32_t> wait_ms = fields.U32();
  if (!wait_ms) return TooShort();
  const std::string_view key = *fields.Text(fields.rest().size());
  HS_RETURN_IF_ERROR(CheckStoreKey(key));
  return StoreRequest{
      .verb = StoreVerb::kGet, .key = key, .value = {}, .wait_ms = *wait_ms, .gather = {}};
}

}  // namespace

Status CheckStoreKey(std::string_view key) {
  if (!key.empty() && key.size() <= kStoreMaxKeyBytes) return Status::Ok();
  return Status::InvalidArgument("invalid store key of " + std::to_string(key.size()) +
                                 " bytes: it must have 1 to " + std::to_string(kStoreMaxKeyBytes));
}

Status CheckStoreValue(std::string_view key, std::span<const std::byte> value) {
  if (value.size() <= kStoreMaxValueBytes) return Status::Ok();
  return Status::InvalidArgument("the value of the store's key '" + std::string(key) + "' has " +
                                 std::to_string(value.size()) + " bytes; at most " +
                                 std::to_string(kStoreMaxValueBytes) + " are allowed");
}

Status CheckGather(const GatherRequest& request) {
  HS_RETURN_IF_ERROR(CheckStoreKey(request.key));
  HS_RETURN_IF_ERROR(CheckStoreValue(request.key, request.value));
  for (const std::string_view text : {request.label, request.unless, request.will}) {
    if (!text.empty()) HS_RETURN_IF_ERROR(CheckStoreKey(text));
  }
  if (request.place < request.count && request.count <= kStoreMaxParties) return Status::Ok();
  return Status::InvalidArgument("place " + std::to_string(request.place) + " of " +
                                 std::to_string(request.count) + " in the gathering '" +
                                 std::string(request.key) + "'; it has at most " +
                                 std::to_string(kStoreMaxParties));
}

std::vector<std::byte> EncodeSet(std::string_view key, std::span<const std::byte> value) {
  std::vector<std::byte> frame = StartFrame(StoreVerb::kSet, 4 + key.size() + value.size());
  AppendText(frame, key);
  AppendBytes(frame, value);
  return frame;
}

std::vector<std::byte> EncodeGather(const GatherRequest& request, uint32_t wait_ms) {
  const size_t texts = request.key.size() + request.label.size() + request.unless.size() +
                       request.will.size() + 4 * sizeof(uint32_t);
  std::vector<std::byte> frame =
      StartFrame(StoreVerb::kGather, 3 * sizeof(uint32_t) + texts + request.value.size());
  AppendU32(frame, wait_ms);
  AppendU32(frame, request.place);
  AppendU32(frame, request.count);
  for (const auto text : {request.key, request.label, request.unless, request.will}) {
    AppendText(frame, text);
  }
  AppendBytes(frame, request.value);
  return frame;
}

std::vector<std::byte> EncodeGet(std::string_view key, uint32_t wait_ms) {
  std::vector<std::byte> frame = StartFrame(StoreVerb::kGet, 4 + key.size());
  AppendU32(frame, wait_ms);
  AppendBytes(frame, AsBytes(key));
  return frame;
}

std::vector<std::byte> EncodeReply(StatusCode code, std::span<const std::byte> payload) {
  std::vector<std::byte> frame = StartFrame(StoreVerb::kReply, 1 + payload.size());
  frame.push_back(static_cast<std::byte>(code));
  AppendBytes(frame, payload);
  return frame;
}

std::vector<std::byte> EncodeGathered(const Gathered& gathered) {
  std::vector<std::byte> payload;
  for (int shift = 0; shift < 64; shift += 32) {
    AppendU32(payload, static_cast<uint32_t>(gathered.round >> shift));
  }
  AppendU32(payload, static_cast<uint32_t>(gathered.values.size()));
  for (const auto& [place, value] : gathered.values) {
    AppendU32(payload, place);
    AppendU32(payload, static_cast<uint32_t>(value.size()));
    AppendBytes(payload, value);
  }
  return payload;
}

std::vector<std::byte> EncodePlaces(std::span<const int> places) {
  std::vector<std::byte> payload;
  for (const int place : places) AppendU32(payload, static_cast<uint32_t>(place));
  return payload;
}

Result<Gathered> DecodeGathered(std::span<const std::byte> payload, uint32_t count) {
  Fields fields(payload);
  Gathered gathered;
  const std::optional<uint32_t> low = fields.U32();
  const std::optional<uint32_t> high = fields.U32();
  const std::optional<uint32_t> values = fields.U32();
  if (!values) return TooShort();
  gathered.round = static_cast<uint64_t>(*high) << 32 | *low;
  for (uint32_t i = 0; i < *values; ++i) {
    const std::optional<uint32_t> place = fields.U32();
    const std::optional<std::string_view> value = fields.SizedText();
    if (!place || !value) return TooShort();
    const auto bytes = AsBytes(*value);
    const bool is_new =
        gathered.values.emplace(*place, std::vector(bytes.begin(), bytes.end())).second;
    if (*place >= count || !is_new) return Status::Protocol("invalid place in a gathering");
  }
  if (!fields.rest().empty()) return Status::Protocol("trailing bytes after the gathered values");
  return gathered;
}

Result<std::vector<int>> DecodePlaces(std::span<const std::byte> payload, uint32_t count) {
  if (payload.size() % sizeof(uint32_t) != 0) return TooShort();
  std::vector<int> places;
  Fields fields(payload);
  while (const std::optional<uint32_t> place = fields.U32()) {
    if (*place >= count) return Status::Protocol("invalid place in a gathering");
    places.push_back(static_cast<int>(*place));
  }
  return places;
}

Result<size_t> DecodeStoreHeader(std::span<const std::byte, kStoreHeaderBytes> header,
                                 size_t most) {
  const size_t bytes = LoadU32(header);
  if (bytes == 0 || bytes > most) {
    return Status::Protocol("store frame of " + std::to_string(bytes) + " bytes; at most " +
                            std::to_string(most) + " are allowed");
  }
  return bytes;
}

Result<StoreRequest> DecodeStoreRequest(std::span<const std::byte> body) {
  Fields fields(body);
  const std::optional<uint8_t> verb = fields.U8();
  if (!verb) return TooShort();
  switch (static_cast<StoreVerb>(*verb)) {
    case StoreVerb::kSet:
      return DecodeSet(fields);
    case StoreVerb::kGather:
      return DecodeGather(fields);
    case StoreVerb::kGet:
      return DecodeGet(fields);
    case StoreVerb::kReply:
      break;
  }
  return Status::Protocol("store request with unknown verb " + std::to_string(*verb));
}

Result<StoreReply> DecodeStoreReply(std::span<const std::byte> body) {
  Fields fields(body);
  const std::optional<uint8_t> verb = fields.U8();
  const std::optional<uint8_t> code = fields.U8();
  if (!verb || !code) return TooShort();
  if (*verb != static_cast<uint8_t>(StoreVerb::kReply)) {
    return Status::Protocol("verb " + std::to_string(*verb) + " instead of a reply");
  }
  if (*code > static_cast<uint8_t>(StatusCode::kInternal)) {
    return Status::Protocol("store reply with unknown status code " + std::to_string(*code));
  }
  return StoreReply{.code = static_cast<StatusCode>(*code), .payload = fields.rest()};
}

}  // namespace horoscale
