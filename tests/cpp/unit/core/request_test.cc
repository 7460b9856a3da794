// Every field of a Signature matters wherever signatures are compared or sent.
#include "core/request.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/codec.h"
#include "core/fusion_planner.h"
#include "core/mismatch.h"
#include "core_cluster.h"

namespace horoscale {
namespace {

constexpr size_t kNumFields = std::tuple_size_v<decltype(FieldsOf(std::declval<Terms&>()))>;

// A different value that the field may have on the wire.
template <typename Enum>
void Change(Enum& value) {
  value = static_cast<Enum>(static_cast<int>(value) == 0 ? 1 : 0);
}
void Change(bool& value) { value = !value; }
void Change(int& value) { value += 3; }
void Change(double& value) { value += 0.5; }
void Change(Encoding& value) { value = {EncodingKind::kTopK, 41}; }
void Change(std::vector<int>& value) { value.push_back(7); }
void Change(std::vector<int64_t>& value) { value.push_back(7); }

// One signature per field, which differs from `signature` in that field only.
std::vector<Signature> ChangedInOneField(const Signature& signature) {
  std::vector<Signature> changed(kNumFields, signature);
  [&]<size_t... i>(std::index_sequence<i...>) {
    (Change(std::get<i>(FieldsOf(changed[i]))), ...);
  }(std::make_index_sequence<kNumFields>());
  return changed;
}

TEST(Signature, EveryFieldIsCompared) {
  const Signature plain = Allreduce({2, 3});
  const FusionPlanner planner({1 << 20, 0});
  const auto of_plain = planner.ClassOf(plain, {}, 0);
  for (const Signature& changed : ChangedInOneField(plain)) {
    EXPECT_NE(changed, plain);
    EXPECT_NE(Hash(changed), Hash(plain));
    EXPECT_TRUE(planner.ClassOf(changed, {}, 0) != of_plain);
  }
}

TEST(Signature, EveryFieldIsSent) {
  Report report;
  for (const Signature& changed : ChangedInOneField(Allreduce({2, 3}))) {
    report.requests.push_back(Named("t" + std::to_string(report.requests.size()), changed));
  }
  EXPECT_EQ(*DecodeReport(Encode(report)), report);
}

// The bound also holds if every field takes its maximum size.
TEST(Signature, TheBoundOfItsBytesHolds) {
  Signature widest = Allreduce({INT64_C(1) << 40, 1 << 15});
  widest.root = widest.target_set = INT32_MIN;
  widest.ranks.assign(1000, INT32_MAX);
  widest.splits.assign(1000, INT64_MIN);
  Report with;
  with.requests.push_back(Named(std::string(kMaxNameBytes, 'n'), widest, INT32_MIN));
  EXPECT_LE(Encode(with).size() - Encode(Report()).size(),
            EncodedSizeBound(with.requests[0].name, widest));
}

TEST(Signature, AMismatchNamesTheFieldThatDiffers) {
  // Some fields apply to some kinds only.
  std::vector<std::string> texts;
  for (const OpKind kind : {OpKind::kAllreduce, OpKind::kBroadcast, OpKind::kReducescatter,
                            OpKind::kAddProcessSet, OpKind::kRemoveProcessSet}) {
    Signature plain = Allreduce({2});
    plain.kind = kind;
    plain.reduce_op = ReduceOp::kAdasum;  // the only operator with a start level
    const std::vector<Signature> changed = ChangedInOneField(plain);
    texts.resize(changed.size());
    for (size_t i = 0; i < changed.size(); ++i) {
      const std::string text = DescribeMismatch("t", 0, {{&plain, {0}}, {&changed[i], {1}}});
      const std::string nothing =
          "the ranks of process set 0 disagree about \"t\": rank 0:; rank 1:";
      if (text != nothing) texts[i] = text;
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_FALSE(texts[i].empty()) << "field " << i;
    EXPECT_EQ(std::count(texts.begin(), texts.end(), texts[i]), 1) << texts[i];
  }
}

}  // namespace
}  // namespace horoscale
