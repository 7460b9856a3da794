#include "rendezvous/store_protocol.h"

#include <optional>
#include <string>

namespace horoscale {
namespace {

void AppendU32(std::vector<std::byte>& frame, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8)
    frame.push_back(static_cast<std::byte>(value >> shift));
}

void AppendBytes(std::vector<std::byte>& frame, std::span<const std::byte> bytes) {
  frame.insert(frame.end(), bytes.begin(), bytes.end());
}

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
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

// Takes fields off the front of a body; each is empty if the body is too short for it.
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

Status TooShort() { return Status::Protocol("store frame ends within a field"); }

std::vector<std::byte> EncodeEntry(StoreVerb verb, std::string_view key,
                                   std::span<const std::byte> value) {
  std::vector<std::byte> frame = StartFrame(verb, 4 + key.size() + value.size());
  AppendU32(frame, static_cast<uint32_t>(key.size()));
  AppendBytes(frame, AsBytes(key));
  AppendBytes(frame, value);
  return frame;
}

Result<StoreRequest> DecodeEntry(StoreVerb verb, Fields& fields) {
  const std::optional<uint32_t> key_bytes = fields.U32();
  if (!key_bytes) return TooShort();
  const std::optional<std::string_view> key = fields.Text(*key_bytes);
  if (!key) return TooShort();
  HS_RETURN_IF_ERROR(CheckStoreKey(*key));
  HS_RETURN_IF_ERROR(CheckStoreValue(*key, fields.rest()));
  return StoreRequest{.verb = verb, .key = *key, .value = fields.rest(), .wait_ms = 0};
}

Result<StoreRequest> DecodeGet(Fields& fields) {
  const std::optional<uint32_t> wait_ms = fields.U32();
  if (!wait_ms) return TooShort();
  const std::string_view key = *fields.Text(fields.rest().size());
  HS_RETURN_IF_ERROR(CheckStoreKey(key));
  return StoreRequest{.verb = StoreVerb::kGet, .key = key, .value = {}, .wait_ms = *wait_ms};
}

}  // namespace

Status CheckStoreKey(std::string_view key) {
  if (!key.empty() && key.size() <= kStoreMaxKeyBytes) return Status::Ok();
  return Status::InvalidArgument("a store key of " + std::to_string(key.size()) +
                                 " bytes; it must have 1 to " + std::to_string(kStoreMaxKeyBytes));
}

Status CheckStoreValue(std::string_view key, std::span<const std::byte> value) {
  if (value.size() <= kStoreMaxValueBytes) return Status::Ok();
  return Status::InvalidArgument("the store's value of '" + std::string(key) + "' has " +
                                 std::to_string(value.size()) + " bytes; at most " +
                                 std::to_string(kStoreMaxValueBytes) + " are allowed");
}

std::vector<std::byte> EncodeSet(std::string_view key, std::span<const std::byte> value) {
  return EncodeEntry(StoreVerb::kSet, key, value);
}

std::vector<std::byte> EncodeWill(std::string_view key, std::span<const std::byte> value) {
  return EncodeEntry(StoreVerb::kWill, key, value);
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

Result<size_t> DecodeStoreHeader(std::span<const std::byte, kStoreHeaderBytes> header) {
  const size_t bytes = LoadU32(header);
  if (bytes == 0 || bytes > kStoreMaxBodyBytes) {
    return Status::Protocol("store frame of " + std::to_string(bytes) + " bytes; at most " +
                            std::to_string(kStoreMaxBodyBytes) + " are allowed");
  }
  return bytes;
}

Result<StoreRequest> DecodeStoreRequest(std::span<const std::byte> body) {
  Fields fields(body);
  const std::optional<uint8_t> verb = fields.U8();
  if (!verb) return TooShort();
  switch (static_cast<StoreVerb>(*verb)) {
    case StoreVerb::kSet:
    case StoreVerb::kWill:
      return DecodeEntry(static_cast<StoreVerb>(*verb), fields);
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
    return Status::Protocol("verb " + std::to_string(*verb) + " where a reply was due");
  }
  if (*code > static_cast<uint8_t>(StatusCode::kInternal)) {
    return Status::Protocol("store reply with unknown status code " + std::to_string(*code));
  }
  return StoreReply{.code = static_cast<StatusCode>(*code), .payload = fields.rest()};
}

}  // namespace horoscale
