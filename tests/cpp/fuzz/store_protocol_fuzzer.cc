// Any bytes: the store's decoders refuse them, or encoding the result gives the same bytes.
#include <stdlib.h>

#include <algorithm>
#include <cstdint>

#include "rendezvous/store_protocol.h"

using namespace horoscale;

namespace {

std::vector<std::byte> Encode(const StoreRequest& request) {
  if (request.verb == StoreVerb::kSet) return EncodeSet(request.key, request.value);
  if (request.verb == StoreVerb::kGather) return EncodeGather(request.gather, request.wait_ms);
  return EncodeGet(request.key, request.wait_ms);
}

void CheckRequest(std::span<const std::byte> body) {
  const Result<StoreRequest> request = DecodeStoreRequest(body);
  if (!request.ok()) return;
  const std::vector<std::byte> frame = Encode(*request);
  if (!std::ranges::equal(std::span(frame).subspan(kStoreHeaderBytes), body)) abort();
  const Result<size_t> bytes = DecodeStoreHeader(std::span(frame).first<kStoreHeaderBytes>());
  if (!bytes.ok() || *bytes != body.size()) abort();
}

void CheckReply(std::span<const std::byte> body) {
  const Result<StoreReply> reply = DecodeStoreReply(body);
  if (!reply.ok()) return;
  const std::vector<std::byte> frame = EncodeReply(reply->code, reply->payload);
  if (!std::ranges::equal(std::span(frame).subspan(kStoreHeaderBytes), body)) abort();
  constexpr uint32_t kCount = 16;
  if (const auto missing = DecodePlaces(reply->payload, kCount); missing.ok()) {
    if (!std::ranges::equal(EncodePlaces(*missing), reply->payload)) abort();
  }
  const auto gathered = DecodeGathered(reply->payload, kCount);
  if (!gathered.ok()) return;
  if (!gathered->values.empty() && gathered->values.rbegin()->first >= kCount) abort();
  if (EncodeGathered(*gathered).size() != reply->payload.size()) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  CheckRequest(bytes);
  CheckReply(bytes);
  if (size >= kStoreHeaderBytes) {
    const Result<size_t> body = DecodeStoreHeader(bytes.first<kStoreHeaderBytes>());
    if (body.ok() && *body > kStoreMaxBodyBytes) abort();
  }
  return 0;
}
