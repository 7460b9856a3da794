// Any stream of bytes, in any pieces: the reader writes nowhere but where it may, and believes no
// length that its handler has not accepted.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "transport/tcp/message_reader.h"

using namespace horoscale;

namespace {

constexpr uint32_t kMostBytes = 4096;

class Handler final : public MessageReader::Handler {
 public:
  Result<std::byte*> OnHeader(const MessageHeader& header) override {
    if (header.bytes > kMostBytes) return Status::Protocol("too long");
    return header.round % 2 == 0 ? nullptr : space_.data();
  }
  Status OnMessage(const MessageHeader& header, std::span<const std::byte> payload) override {
    if (payload.size() != header.bytes) abort();
    if (header.round % 2 != 0 && payload.data() != space_.data()) abort();
    return {};
  }

 private:
  std::array<std::byte, kMostBytes> space_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = data[0] + size_t{1};
  std::span<const std::byte> stream = std::as_bytes(std::span(data, size)).subspan(1);
  MessageReader reader(64 + data[0]);
  Handler handler;
  while (!stream.empty()) {
    const auto room = reader.Room();
    if (room[0].empty() && room[1].empty()) abort();
    const size_t first = std::min({piece, room[0].size(), stream.size()});
    const size_t bytes = std::min({piece, first + room[1].size(), stream.size()});
    std::copy_n(stream.begin(), first, room[0].begin());
    if (first == room[0].size()) {
      std::copy_n(stream.begin() + first, bytes - first, room[1].begin());
    }
    stream = stream.subspan(bytes);
    if (!reader.Take(bytes, handler).ok()) break;
  }
  return 0;
}
