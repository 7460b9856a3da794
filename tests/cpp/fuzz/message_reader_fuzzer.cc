// Any stream of bytes, in any pieces: the reader writes only where it may, and trusts no length
// that its handler has not accepted. An authenticated reader accepts only what was sent: there the
// input says how an attacker on the path modifies a genuine stream.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "platform/unix_socket.h"
#include "transport/tcp/message_reader.h"
#include "transport/tcp/message_writer.h"

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

void Feed(MessageReader& reader, MessageReader::Handler& handler, size_t piece,
          std::span<const std::byte> stream) {
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
}

constexpr MessageKey kKey = {std::byte{1}};

struct Genuine {
  MessageHeader header;
  std::vector<std::byte> payload;
};

// A few messages, and their bytes as the writer encodes them.
const std::vector<Genuine>& Messages() {
  static const auto& messages = *new std::vector<Genuine>([] {
    std::vector<Genuine> made;
    for (uint32_t i = 0; i < 6; ++i) {
      const uint32_t bytes = i * 13;
      const auto type = i % 2 == 0 ? MessageType::kFrame : MessageType::kChunk;
      const MessageHeader header = {type, FrameKind::kReport, i, 1, bytes, 0, 0, 0, 1, 2 * i};
      made.push_back({header, std::vector<std::byte>(bytes, static_cast<std::byte>(i))});
    }
    return made;
  }());
  return messages;
}

const std::vector<std::byte>& Wire() {
  static const auto& wire = *new std::vector<std::byte>([] {
    auto [near, far] = UnixPair().TakeValue();
    MessageWriter writer(kKey);
    for (const Genuine& message : Messages()) writer.Add(message.header, message.payload);
    if (!writer.Flush(near).ok()) abort();
    std::vector<std::byte> bytes(4096);
    bytes.resize(*far.ReceiveSome(bytes));
    return bytes;
  }());
  return wire;
}

// Checks the messages against those sent, in order, as far as it gets.
class Witness final : public MessageReader::Handler {
 public:
  Result<std::byte*> OnHeader(const MessageHeader& header) override {
    if (seen_ == Messages().size()) abort();
    if (std::memcmp(&header, &Messages()[seen_].header, sizeof(header)) != 0) abort();
    return nullptr;
  }
  Status OnMessage(const MessageHeader&, std::span<const std::byte> payload) override {
    const std::vector<std::byte>& sent = Messages()[seen_++].payload;
    if (!std::equal(payload.begin(), payload.end(), sent.begin(), sent.end())) abort();
    return {};
  }

 private:
  size_t seen_ = 0;
};

// Three bytes per edit: the action (copy a run of the genuine stream, or insert a byte) and its
// position.
std::vector<std::byte> Edited(std::span<const uint8_t> orders) {
  std::vector<std::byte> bytes;
  for (; orders.size() >= 3 && bytes.size() < 1 << 16; orders = orders.subspan(3)) {
    if (orders[0] == 0) {
      bytes.push_back(static_cast<std::byte>(orders[1]));
      continue;
    }
    const size_t begin = std::min<size_t>(orders[1] * size_t{4}, Wire().size());
    const size_t count = std::min<size_t>(orders[0] + orders[2] * size_t{4}, Wire().size() - begin);
    const auto run = std::span(Wire()).subspan(begin, count);
    bytes.insert(bytes.end(), run.begin(), run.end());
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = data[0] + size_t{1};
  const std::span<const uint8_t> rest = std::span(data, size).subspan(1);
  MessageReader reader(64 + data[0]);
  Handler handler;
  Feed(reader, handler, piece, std::as_bytes(rest));
  MessageReader authenticated(64 + data[0], kKey);
  Witness witness;
  Feed(authenticated, witness, piece, Edited(rest));
  return 0;
}
