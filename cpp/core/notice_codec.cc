// Codec of the messages other than reports, plans and posts: goodbyes, stalls, losses.
#include <limits>
#include <utility>

#include "core/codec.h"
#include "core/decoding.h"
#include "core/wire.h"

namespace horoscale {

std::vector<std::byte> Encode(const Goodbye& goodbye) {
  WireWriter out;
  out.Byte(goodbye.clean ? 1 : 0);
  out.Varint(static_cast<uint64_t>(goodbye.code));
  out.Text(Clip(goodbye.message));
  out.Varint(goodbye.ranks.size());
  for (int rank : goodbye.ranks) out.Varint(static_cast<uint64_t>(rank));
  out.Varint(goodbye.executed.size());
  for (const ExecutedUpTo& set : goodbye.executed) {
    out.Varint(set.process_set);
    out.Varint(set.incarnation);
    out.Varint(set.sequence);
    out.Varint(set.posts);
  }
  return out.Take();
}

Result<Goodbye> DecodeGoodbye(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxMessageBytes) return Broken("goodbye", "it is too long");
  WireReader in(bytes);
  Goodbye goodbye;
  goodbye.clean = in.Varint(1) == 1;
  goodbye.code = static_cast<int>(in.Varint(static_cast<uint64_t>(kLastStatusCode)));
  goodbye.message = in.Text(kMaxTextBytes);
  goodbye.ranks.resize(in.Count(kMaxRanks, 1));
  for (int& rank : goodbye.ranks) rank = static_cast<int>(in.Varint(kMaxRanks));
  goodbye.executed.resize(in.Count(bytes.size(), 4));
  for (ExecutedUpTo& set : goodbye.executed) {
    set.process_set = static_cast<uint32_t>(in.Varint(std::numeric_limits<uint32_t>::max()));
    set.incarnation = static_cast<uint32_t>(in.Varint(std::numeric_limits<uint32_t>::max()));
    set.sequence = in.Varint(std::numeric_limits<uint64_t>::max());
    set.posts = in.Varint(std::numeric_limits<uint64_t>::max());
  }
  CheckEnd(in);
  if (!in.ok()) return Broken("goodbye", in.reason());
  return goodbye;
}

std::vector<std::byte> Encode(const StallNotice& notice) {
  WireWriter out;
  out.Text(Clip(notice.operation));
  out.Varint(notice.milliseconds);
  out.Varint(notice.missing.size());
  for (int rank : notice.missing) out.Varint(static_cast<uint64_t>(rank));
  out.Byte(notice.one_would_do ? 1 : 0);
  return out.Take();
}

Result<StallNotice> DecodeStallNotice(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxMessageBytes) return Broken("stall notice", "it is too long");
  WireReader in(bytes);
  StallNotice notice;
  notice.operation = in.Text(kMaxTextBytes);
  notice.milliseconds = in.Varint();
  notice.missing.resize(in.Count(kMaxRanks, 1));
  for (int& rank : notice.missing) rank = static_cast<int>(in.Varint(kMaxRanks));
  notice.one_would_do = in.Varint(1) == 1;
  CheckEnd(in);
  if (!in.ok()) return Broken("stall notice", in.reason());
  return notice;
}

std::vector<std::byte> Encode(const LossNotice& notice) {
  WireWriter out;
  out.Varint(static_cast<uint64_t>(notice.rank));
  out.Text(Clip(notice.reason));
  out.Byte(notice.goodbye ? 1 : 0);
  if (notice.goodbye) out.Bytes(*notice.goodbye);
  return out.Take();
}

Result<LossNotice> DecodeLossNotice(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxMessageBytes) return Broken("notice of a loss", "it is too long");
  WireReader in(bytes);
  LossNotice notice;
  notice.rank = static_cast<int>(in.Varint(kMaxRanks));
  notice.reason = in.Text(kMaxTextBytes);
  if (in.Varint(1) == 1) notice.goodbye = in.Bytes(kMaxMessageBytes);
  CheckEnd(in);
  if (!in.ok()) return Broken("notice of a loss", in.reason());
  return notice;
}

}  // namespace horoscale
