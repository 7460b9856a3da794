#include "core/codec.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core_cluster.h"

namespace horoscale {
namespace {

Request FullRequest() {
  Request request = Named("layer.1/weight", Allreduce({3, 0, 1 << 20}, DataType::kBfloat16), -7);
  request.signature.root = 5;
  request.signature.reduce_op = ReduceOp::kAverage;
  request.signature.prescale = 0.1;
  request.signature.postscale = -2.5;
  request.signature.encoding = {EncodingKind::kFloat16};
  request.signature.on_device = true;
  request.signature.tensors.push_back({DataType::kInt64, {}});
  request.signature.ranks = {0, 3, 1000};
  request.signature.target_set = 12;
  request.signature.splits = {0, 5, int64_t{1} << 40};
  return request;
}

Report FullReport() {
  Report report;
  report.applied_sequence = 1ull << 40;
  report.hits = {0, 7, 1000};
  report.unnamed_hits = {{3, 1}, {3, 2}, {900, 1000000}};
  report.requests = {FullRequest(), Named("b", Allreduce({1}))};
  report.requests[1].name.clear();
  report.requests[1].index = 77;
  report.hit_priorities = {1, -1, 0, 0, 5, std::numeric_limits<int>::min()};
  report.errors = {{7, {EncodingKind::kInt8}, 61}, {1000, {EncodingKind::kTopK, 41}, 40'000}};
  report.join = true;
  return report;
}

PlanEntry FullEntry() {
  PlanEntry entry;
  entry.sequence = 300;
  entry.retired_slots = {9, 2};
  entry.absent = {0, 4};
  entry.divisor = 6;
  entry.encoding = Encoding{EncodingKind::kTopK, 41};
  for (uint32_t slot : {5, 6, 7, 9, 8}) entry.items.emplace_back().slot = slot;
  PlanItem& request = entry.items.emplace_back();
  request.slot = 11;
  request.request = FullRequest();
  PlanItem& unnamed = entry.items.emplace_back();
  unnamed.slot = 12;
  unnamed.index = 99;
  PlanItem& part = entry.items.emplace_back();
  part.slot = 13;
  part.whole = false;
  part.tensor = 1;
  part.begin = 64;
  part.count = 128;
  PlanItem& more = entry.items.emplace_back();
  more.whole = false;
  more.begin = 192;
  return entry;
}

PlanEntry Failure() {
  PlanEntry entry;
  entry.type = PlanEntry::Type::kFail;
  entry.sequence = 2;
  entry.items.emplace_back().request = Named("t", Signature{});
  entry.failure_code = static_cast<int>(StatusCode::kMismatch);
  entry.failure_message = "ranks disagree";
  return entry;
}

// Every prefix of a message, and every message with an extra byte, is refused.
template <typename Decode>
void ExpectStrict(const std::vector<std::byte>& bytes, Decode decode) {
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto result = decode(std::span(bytes).first(size));
    EXPECT_EQ(result.status().code(), StatusCode::kProtocol) << size << " of " << bytes.size();
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode(longer).ok());
}

TEST(Codec, ReportsSurviveTheWire) {
  const Report report = FullReport();
  const auto bytes = Encode(report);
  EXPECT_EQ(*DecodeReport(bytes), report);
  ExpectStrict(bytes, DecodeReport);
}

TEST(Codec, NothingTravelsInAnAdaptiveEncoding) {
  const Encoding adaptive{EncodingKind::kAdaptive, 1000};
  PlanEntry entry = FullEntry();
  entry.encoding = adaptive;
  EXPECT_FALSE(DecodePlanEntry(Encode(entry)).ok());
  Report report = FullReport();
  report.errors[0].encoding = adaptive;
  EXPECT_FALSE(DecodeReport(Encode(report)).ok());
}

TEST(Codec, ReportsOfPostsSurviveTheWire) {
  for (const Post& post : {Post{70, 1, 300, 4, 9, 0}, Post{70, 0, 0, 4, 9, 1000}}) {
    Report report;
    report.applied_sequence = post.applied_sequence;
    report.posted = post;
    const auto bytes = Encode(report);
    EXPECT_EQ(*DecodeReport(bytes), report);
    ExpectStrict(bytes, DecodeReport);
    auto joining = bytes;
    joining[0] |= std::byte{1};
    EXPECT_FALSE(DecodeReport(joining).ok()) << "it says nothing else";
  }
}

TEST(Codec, PlanEntriesSurviveTheWire) {
  PlanEntry joined;
  joined.type = PlanEntry::Type::kAllJoined;
  joined.last_joined = 31;
  for (const PlanEntry& entry : {FullEntry(), Failure(), joined}) {
    const auto bytes = Encode(entry);
    EXPECT_EQ(*DecodePlanEntry(bytes), entry);
    ExpectStrict(bytes, DecodePlanEntry);
  }
}

TEST(Codec, GoodbyesSurviveTheWire) {
  const Goodbye goodbye{.clean = false,
                        .executed = {{7, 1, 42, 5}, {0, 0, 300, 0}},
                        .code = 5,
                        .message = "rank 3 died",
                        .ranks = {3, 0}};
  const auto bytes = Encode(goodbye);
  EXPECT_EQ(*DecodeGoodbye(bytes), goodbye);
  ExpectStrict(bytes, DecodeGoodbye);
}

TEST(Codec, NoticesOfLossesSurviveTheWire) {
  LossNotice notice{.rank = 300, .reason = "its process ended", .goodbye = {}};
  for (const size_t bytes : {0, 1, 200}) {
    const std::vector<std::byte> encoded = Encode(notice);
    EXPECT_EQ(*DecodeLossNotice(encoded), notice);
    ExpectStrict(encoded, DecodeLossNotice);
    notice.goodbye.emplace(bytes, std::byte{7});
  }
}

TEST(Codec, DenseHitsTakeABitEach) {
  Report report;
  for (uint32_t slot = 3; slot < 1003; ++slot) report.hits.push_back(slot);
  EXPECT_LT(Encode(report).size(), 135u);
  EXPECT_EQ(*DecodeReport(Encode(report)), report);
  report.hits = {5, 100000};
  EXPECT_LT(Encode(report).size(), 12u);
}

TEST(Codec, RunsOfCachedUnitsTakeAFewBytes) {
  PlanEntry entry;
  for (uint32_t slot = 0; slot < 1000; ++slot) entry.items.emplace_back().slot = slot;
  EXPECT_LT(Encode(entry).size(), 12u);
  EXPECT_EQ(*DecodePlanEntry(Encode(entry)), entry);
}

TEST(Codec, CountsAreCheckedBeforeAnythingIsAllocated) {
  // A report without hits that announces 2^18 requests, and an entry with a run of 2^20 slots.
  const std::vector<std::byte> report = {std::byte{0},   std::byte{0},    std::byte{0},
                                         std::byte{0},   std::byte{0x80}, std::byte{0x80},
                                         std::byte{0x10}};
  EXPECT_EQ(DecodeReport(report).status().code(), StatusCode::kProtocol);
  const std::vector<std::byte> entry = {
      std::byte{0}, std::byte{1}, std::byte{0},    std::byte{0},    std::byte{1},
      std::byte{0}, std::byte{0}, std::byte{0x80}, std::byte{0x80}, std::byte{0x40}};
  EXPECT_EQ(DecodePlanEntry(entry).status().code(), StatusCode::kProtocol);
}

TEST(Codec, LongTextsAreCutBetweenCharacters) {
  Goodbye goodbye;
  goodbye.message = std::string(kMaxTextBytes - 1, 'x') + "ä";
  const Result<Goodbye> decoded = DecodeGoodbye(Encode(goodbye));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->message, std::string(kMaxTextBytes - 1, 'x'));
}

TEST(Codec, LimitsNameWhatIsTooLarge) {
  const auto message = [](const Request& request) { return CheckLimits(request).message(); };
  EXPECT_TRUE(CheckLimits(FullRequest()).ok());
  EXPECT_NE(message(Named(std::string(kMaxNameBytes + 1, 'n'), {})).find("name"),
            std::string::npos);
  EXPECT_NE(message(Named("n", Allreduce({1ll << 40, 1ll << 40}))).find("2^60"), std::string::npos);
  EXPECT_NE(message(Named("n", Allreduce({-1}))).find("dimension: -1"), std::string::npos);
  EXPECT_NE(message(Named("n", Allreduce(std::vector<int64_t>(65, 1)))).find("65 dimensions"),
            std::string::npos);
  Request scaled = Named("n", Allreduce({1}));
  scaled.signature.prescale = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(message(scaled).find("finite"), std::string::npos);
}

TEST(Codec, RequestsOnTheWireAreHeldToTheLimits) {
  Report report;
  report.requests = {Named("n", Allreduce({1ll << 40, 1ll << 40}))};
  EXPECT_FALSE(DecodeReport(Encode(report)).ok());
  report.requests = {Join()};
  report.requests[0].name = "j";
  EXPECT_FALSE(DecodeReport(Encode(report)).ok());
  report.requests = {Named("", Allreduce({1}))};  // neither name nor index
  EXPECT_FALSE(DecodeReport(Encode(report)).ok());
}

}  // namespace
}  // namespace horoscale
