#include "core/codec.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "core/decoding.h"
#include "core/request_codec.h"
#include "core/wire.h"

namespace horoscale {
namespace {

// Flags of a report.
constexpr uint8_t kJoinFlag = 1;
constexpr uint8_t kBitmapFlag = 2;
constexpr uint8_t kPrioritiesFlag = 4;
constexpr uint8_t kPostedFlag = 8;
constexpr uint8_t kErrorsFlag = 16;

constexpr size_t kMinJointReportBytes = 8;  // size of the smallest one
// A member may be in several parts of a group report; this limits the total number of members in
// all parts.
constexpr size_t kMaxGroupMembers = 4 * kMaxRanks;

// Tags of a plan item: a run of whole cached units, or one item with these parts.
constexpr uint8_t kRunTag = 0;
constexpr uint8_t kItemTag = 1;
constexpr uint8_t kSlotFlag = 2;
constexpr uint8_t kRequestFlag = 4;
constexpr uint8_t kIndexFlag = 8;
constexpr uint8_t kPartFlag = 16;
constexpr uint8_t kItemTagMask = kItemTag | kSlotFlag | kRequestFlag | kIndexFlag | kPartFlag;

size_t VarintSize(uint64_t value) {
  size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

// Ascending numbers, as the first number and the gaps.
void WriteAscending(const std::vector<uint32_t>& numbers, WireWriter& out) {
  out.Varint(numbers.size());
  uint32_t next = 0;
  for (uint32_t number : numbers) {
    out.Varint(number - next);
    next = number + 1;
  }
}

std::vector<uint32_t> ReadAscending(WireReader& in, size_t limit) {
  std::vector<uint32_t> numbers(in.Count(limit, 1));
  uint64_t next = 0;
  for (uint32_t& number : numbers) {
    next += in.Varint(limit);
    if (next >= limit) in.Fail("a number is out of range");
    number = in.ok() ? static_cast<uint32_t>(next++) : 0;
  }
  return numbers;
}

bool BitmapIsShorter(const std::vector<uint32_t>& hits) {
  if (hits.empty()) return false;
  size_t list = VarintSize(hits.size());
  uint32_t next = 0;
  for (uint32_t slot : hits) {
    list += VarintSize(slot - next);
    next = slot + 1;
  }
  const size_t bytes = (hits.back() - hits.front()) / 8 + 1;
  return VarintSize(hits.front()) + VarintSize(bytes) + bytes < list;
}

// A bitmap from the first slot to the last one, lowest bit first.
void WriteBitmap(const std::vector<uint32_t>& hits, WireWriter& out) {
  const uint32_t first = hits.front();
  std::vector<uint8_t> bits((hits.back() - first) / 8 + 1);
  for (uint32_t slot : hits) bits[(slot - first) / 8] |= 1u << ((slot - first) % 8);
  out.Varint(first);
  out.Varint(bits.size());
  for (uint8_t byte : bits) out.Byte(byte);
}

std::vector<uint32_t> ReadBitmap(WireReader& in) {
  const auto first = static_cast<uint32_t>(in.Varint(kMaxSlots - 1));
  const size_t bytes = in.Count((kMaxSlots - first + 7) / 8, 1);
  std::vector<uint32_t> hits;
  for (size_t i = 0; i < bytes; ++i) {
    const uint8_t byte = in.Byte();
    for (uint32_t bit = 0; bit < 8; ++bit) {
      if (byte >> bit & 1) hits.push_back(first + static_cast<uint32_t>(i) * 8 + bit);
    }
  }
  if (hits.empty() || hits.back() >= kMaxSlots) in.Fail("a bitmap is empty or too long");
  return hits;
}

void ReadUnnamedHits(WireReader& in, Report& report) {
  report.unnamed_hits.resize(in.Count(kMaxPendingUnits, 2));
  uint64_t last = 0;
  for (UnnamedHit& hit : report.unnamed_hits) {
    hit.slot = static_cast<uint32_t>(in.Varint(kMaxSlots - 1));
    const uint64_t gap = in.Varint();
    if (gap == 0 || gap > UINT64_MAX - last) in.Fail("indices are not ascending");
    last = hit.index = last + gap;
  }
}

bool IsCachedWhole(const PlanItem& item) {
  return item.whole && item.slot && !item.request && item.index == 0;
}

// The number of items from `begin` on with consecutive slots.
size_t RunLength(const std::vector<PlanItem>& items, size_t begin) {
  size_t end = begin;
  while (end < items.size() && IsCachedWhole(items[end]) &&
         *items[end].slot == *items[begin].slot + (end - begin)) {
    ++end;
  }
  return end - begin;
}

void WriteItem(const PlanItem& item, WireWriter& out) {
  out.Byte(static_cast<uint8_t>(kItemTag | (item.slot ? kSlotFlag : 0) |
                                (item.request ? kRequestFlag : 0) |
                                (item.index != 0 ? kIndexFlag : 0) | (item.whole ? 0 : kPartFlag)));
  if (item.slot) out.Varint(*item.slot);
  if (item.request) WriteRequest(*item.request, out);
  if (item.index != 0) out.Varint(item.index);
  if (item.whole) return;
  out.Varint(item.tensor);
  out.Varint(static_cast<uint64_t>(item.begin));
  out.Varint(static_cast<uint64_t>(item.count));
}

void WriteItems(const std::vector<PlanItem>& items, WireWriter& out) {
  out.Varint(items.size());
  for (size_t i = 0; i < items.size();) {
    if (const size_t run = RunLength(items, i); run > 0) {
      out.Byte(kRunTag);
      out.Varint(*items[i].slot);
      out.Varint(run);
      i += run;
    } else {
      WriteItem(items[i++], out);
    }
  }
}

void ReadRun(WireReader& in, size_t most, std::vector<PlanItem>& items) {
  const auto first = static_cast<uint32_t>(in.Varint(kMaxSlots - 1));
  const auto length = static_cast<uint32_t>(in.Varint(std::min<size_t>(most, kMaxSlots - first)));
  if (length == 0) in.Fail("a run is empty");
  for (uint32_t i = 0; in.ok() && i < length; ++i) items.emplace_back().slot = first + i;
}

void ReadItem(WireReader& in, uint8_t tag, PlanItem& item) {
  if (tag & kSlotFlag) item.slot = static_cast<uint32_t>(in.Varint(kMaxSlots - 1));
  if (tag & kRequestFlag) item.request = ReadRequest(in);
  if (tag & kIndexFlag) {
    item.index = in.Varint();
    if (item.index == 0 || !item.slot || item.request) in.Fail("an index is in the wrong place");
  }
  item.whole = !(tag & kPartFlag);
  if (!item.whole) {
    item.tensor = static_cast<uint32_t>(in.Varint(kMaxTensors - 1));
    item.begin = static_cast<int64_t>(in.Varint(kMaxRequestDataBytes));
    item.count = static_cast<int64_t>(in.Varint(kMaxRequestDataBytes));
  } else if (!item.slot && !item.request) {
    in.Fail("an item does not name a unit");
  }
}

std::vector<PlanItem> ReadItems(WireReader& in) {
  const size_t count = in.Varint(kMaxPlanItems);
  std::vector<PlanItem> items;
  while (in.ok() && items.size() < count) {
    const uint8_t tag = in.Byte();
    if (tag == kRunTag) {
      ReadRun(in, count - items.size(), items);
    } else if ((tag & kItemTag) == 0 || (tag & ~kItemTagMask) != 0) {
      in.Fail("a plan item has an unknown tag");
    } else {
      ReadItem(in, tag, items.emplace_back());
    }
  }
  return items;
}

void ReadFailure(WireReader& in, PlanEntry& entry) {
  entry.failure_code = static_cast<int>(in.Varint(static_cast<uint64_t>(kLastStatusCode)));
  entry.failure_message = in.Text(kMaxTextBytes);
  const auto code = static_cast<StatusCode>(entry.failure_code);
  if (code != StatusCode::kMismatch && code != StatusCode::kJoined) {
    in.Fail("a failure has a code other than mismatch and joined");
  }
  if (entry.items.size() != 1 || entry.items[0].slot || !entry.items[0].request ||
      !entry.items[0].whole) {
    in.Fail("a failure does not name exactly one unit");
  }
}

// All fields except the applied sequence, which precedes them.
void WritePost(const Post& post, WireWriter& out) {
  out.Varint(post.epoch);
  out.Varint(post.index);
  out.Varint(post.slot);
  out.Varint(post.slot_since);
  if (post.index == 0) out.Varint(post.occurrence);
}

Post ReadPost(uint64_t applied_sequence, WireReader& in) {
  Post post;
  post.applied_sequence = applied_sequence;
  post.epoch = in.Varint();
  post.index = in.Varint();
  post.slot = static_cast<uint32_t>(in.Varint(kMaxSlots));
  post.slot_since = in.Varint();
  if (post.index == 0) post.occurrence = in.Varint();
  return post;
}

void WriteReport(const Report& report, WireWriter& out) {
  if (report.posted) {
    out.Byte(kPostedFlag);
    out.Varint(report.applied_sequence);
    return WritePost(*report.posted, out);
  }
  const bool bitmap = BitmapIsShorter(report.hits);
  out.Byte(static_cast<uint8_t>((report.join ? kJoinFlag : 0) | (bitmap ? kBitmapFlag : 0) |
                                (report.hit_priorities.empty() ? 0 : kPrioritiesFlag) |
                                (report.errors.empty() ? 0 : kErrorsFlag)));
  out.Varint(report.applied_sequence);
  if (bitmap) {
    WriteBitmap(report.hits, out);
  } else {
    WriteAscending(report.hits, out);
  }
  out.Varint(report.unnamed_hits.size());
  uint64_t last = 0;
  for (const UnnamedHit& hit : report.unnamed_hits) {
    out.Varint(hit.slot);
    out.Varint(hit.index - last);
    last = hit.index;
  }
  out.Varint(report.requests.size());
  for (const Request& request : report.requests) WriteRequest(request, out);
  for (int priority : report.hit_priorities) out.Zigzag(priority);
  if (report.errors.empty()) return;
  out.Varint(report.errors.size());
  for (const EncodingError& error : report.errors) {
    out.Varint(error.slot);
    out.Varint(static_cast<uint64_t>(error.encoding.Code()));
    out.Varint(error.error);
  }
}

// Decodes an encoding that data is sent in, so it can't be adaptive.
Encoding CheckedEncoding(int64_t code, WireReader& in) {
  const auto encoding = Encoding::FromCode(code);
  if (encoding && !encoding->IsAdaptive()) return *encoding;
  in.Fail("nothing travels in such an encoding");
  return {};
}

std::optional<Encoding> ReadChoice(WireReader& in) {
  const uint64_t choice = in.Varint(INT32_MAX);
  if (choice == 0) return {};
  return CheckedEncoding(static_cast<int64_t>(choice) - 1, in);
}

void ReadErrors(WireReader& in, Report& report) {
  report.errors.resize(in.Count(kMaxSlots, 3));
  for (EncodingError& error : report.errors) {
    error.slot = static_cast<uint32_t>(in.Varint(kMaxSlots - 1));
    error.encoding = CheckedEncoding(static_cast<int64_t>(in.Varint(INT32_MAX)), in);
    error.error = static_cast<uint32_t>(in.Varint(UINT32_MAX));
  }
  if (report.errors.empty()) in.Fail("it has no errors of encodings");
}

Report ReadReport(WireReader& in) {
  Report report;
  const uint8_t flags = in.Byte();
  const bool is_known = flags == kPostedFlag || (flags & ~kErrorsFlag) < kPostedFlag;
  if (!is_known) in.Fail("a flag is unknown or incompatible with the others");
  report.applied_sequence = in.Varint();
  if (flags == kPostedFlag) {
    report.posted = ReadPost(report.applied_sequence, in);
    return report;
  }
  report.join = flags & kJoinFlag;
  report.hits = flags & kBitmapFlag ? ReadBitmap(in) : ReadAscending(in, kMaxSlots);
  ReadUnnamedHits(in, report);
  const size_t requests = in.Count(kMaxPendingUnits, kMinRequestBytes);
  for (size_t i = 0; in.ok() && i < requests; ++i) report.requests.push_back(ReadRequest(in));
  if (in.ok() && flags & kPrioritiesFlag) {
    const size_t hits = report.hits.size() + report.unnamed_hits.size();
    if (hits == 0 || hits > in.left()) {
      in.Fail("the number of priorities differs from the number of hits");
    } else {
      report.hit_priorities.resize(hits);
      for (int& priority : report.hit_priorities) priority = in.Int();
    }
  }
  if (in.ok() && flags & kErrorsFlag) ReadErrors(in, report);
  return report;
}

// Runs of members: the gap before a run, and the number of members after its first.
void WriteMembers(const std::vector<uint32_t>& members, WireWriter& out) {
  std::vector<std::pair<uint32_t, uint32_t>> runs;  // first, last
  for (uint32_t member : members) {
    if (!runs.empty() && runs.back().second + 1 == member) {
      runs.back().second = member;
    } else {
      runs.emplace_back(member, member);
    }
  }
  out.Varint(runs.size());
  uint32_t next = 0;
  for (const auto& [first, last] : runs) {
    out.Varint(first - next);
    out.Varint(last - first);
    next = last + 1;
  }
}

std::vector<uint32_t> ReadMembers(WireReader& in) {
  std::vector<uint32_t> members;
  const size_t runs = in.Count(kMaxRanks, 2);
  if (runs == 0) in.Fail("no member reports");
  uint64_t next = 0;
  for (size_t i = 0; in.ok() && i < runs; ++i) {
    const uint64_t first = next + in.Varint(kMaxRanks);
    next = first + in.Varint(kMaxRanks) + 1;
    if (next > kMaxRanks) in.Fail("a number is out of range");
    for (uint64_t member = first; in.ok() && member < next; ++member) {
      members.push_back(static_cast<uint32_t>(member));
    }
  }
  return members;
}

}  // namespace

std::vector<std::byte> Encode(const Report& report) {
  WireWriter out;
  WriteReport(report, out);
  return out.Take();
}

Result<Report> DecodeReport(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxMessageBytes) return Broken("report", "it is too long");
  WireReader in(bytes);
  Report report = ReadReport(in);
  CheckEnd(in);
  if (!in.ok()) return Broken("report", in.reason());
  return report;
}

std::vector<std::byte> Encode(const GroupReport& report) {
  WireWriter out;
  out.Varint(report.parts.size());
  for (const JointReport& part : report.parts) {
    WriteMembers(part.members, out);
    WriteReport(part.report, out);
  }
  return out.Take();
}

Result<GroupReport> DecodeGroupReport(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxMessageBytes) return Broken("group report", "it is too long");
  WireReader in(bytes);
  GroupReport report;
  const size_t parts = in.Count(kMaxRanks, kMinJointReportBytes);
  size_t members = 0;
  for (size_t i = 0; in.ok() && i < parts; ++i) {
    JointReport& part = report.parts.emplace_back();
    part.members = ReadMembers(in);
    part.report = ReadReport(in);
    members += part.members.size();
    if (members > kMaxGroupMembers) in.Fail("it contains too many members");
  }
  CheckEnd(in);
  if (!in.ok()) return Broken("group report", in.reason());
  return report;
}

std::vector<std::byte> Encode(const PlanEntry& entry) {
  WireWriter out;
  out.Byte(static_cast<uint8_t>(entry.type));
  out.Varint(entry.sequence);
  out.Varint(entry.retired_slots.size());
  for (uint32_t slot : entry.retired_slots) out.Varint(slot);
  WriteAscending(entry.absent, out);
  if (!entry.absent.empty()) out.Varint(entry.divisor);
  switch (entry.type) {
    case PlanEntry::Type::kExecute:
      // One more than its code; 0: none is chosen.
      out.Varint(entry.encoding ? static_cast<uint64_t>(entry.encoding->Code()) + 1 : 0);
      WriteItems(entry.items, out);
      break;
    case PlanEntry::Type::kFail:
      WriteItems(entry.items, out);
      out.Varint(static_cast<uint64_t>(entry.failure_code));
      out.Text(Clip(entry.failure_message));
      break;
    case PlanEntry::Type::kAllJoined:
      out.Varint(static_cast<uint64_t>(entry.last_joined));
      break;
  }
  return out.Take();
}

Result<PlanEntry> DecodePlanEntry(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxMessageBytes) return Broken("plan entry", "it is too long");
  WireReader in(bytes);
  PlanEntry entry;
  const uint8_t type = in.Byte();
  entry.sequence = in.Varint();
  entry.retired_slots.resize(in.Count(kMaxSlots, 1));
  for (uint32_t& slot : entry.retired_slots) {
    slot = static_cast<uint32_t>(in.Varint(kMaxSlots - 1));
  }
  entry.absent = ReadAscending(in, kMaxRanks);
  if (!entry.absent.empty()) entry.divisor = static_cast<uint32_t>(in.Varint(kMaxRanks));
  switch (type) {
    case static_cast<uint8_t>(PlanEntry::Type::kExecute):
      entry.type = PlanEntry::Type::kExecute;
      entry.encoding = ReadChoice(in);
      entry.items = ReadItems(in);
      if (entry.items.empty()) in.Fail("it has no items");
      break;
    case static_cast<uint8_t>(PlanEntry::Type::kFail):
      entry.type = PlanEntry::Type::kFail;
      entry.items = ReadItems(in);
      ReadFailure(in, entry);
      break;
    case static_cast<uint8_t>(PlanEntry::Type::kAllJoined):
      entry.type = PlanEntry::Type::kAllJoined;
      entry.last_joined = static_cast<int>(in.Varint(kMaxRanks));
      break;
    default:
      in.Fail("its type is unknown");
  }
  CheckEnd(in);
  if (!in.ok()) return Broken("plan entry", in.reason());
  return entry;
}

std::vector<std::byte> Encode(const Post& post, std::span<const std::byte> values,
                              std::vector<std::byte> old) {
  WireWriter out(std::move(old));
  out.Varint(post.applied_sequence);
  WritePost(post, out);
  out.Bytes(values);
  return out.Take();
}

Result<PostedValues> DecodePost(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  const uint64_t applied_sequence = in.Varint();
  PostedValues posted{ReadPost(applied_sequence, in), in.View(kMaxPostBytes)};
  CheckEnd(in);
  if (!in.ok()) return Broken("post", in.reason());
  return posted;
}

}  // namespace horoscale
