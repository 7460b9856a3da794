#include "core/mismatch.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <tuple>
#include <utility>

#include "base/rank_list.h"

namespace horoscale {
namespace {

// Longer lists are truncated with "…" for readability.
constexpr size_t kMaxListed = 32;
constexpr size_t kMaxNameShown = 512;

std::string FormatNumber(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", number);
  return text;
}

std::string Shorten(std::string_view text) {
  if (text.size() <= kMaxNameShown) return std::string(text);
  return std::string(text.substr(0, kMaxNameShown)) + "…";
}

std::string FormatSplits(const std::vector<int64_t>& splits) {
  std::string text = "splits [";
  for (size_t i = 0; i < splits.size(); ++i) {
    if (i > 0) text += ", ";
    if (i == kMaxListed) return text + "…]";
    text += std::to_string(splits[i]);
  }
  return text + "]";
}

using Statements = std::vector<Statement>;
using Fields = decltype(FieldsOf(std::declval<const Terms&>()));
constexpr size_t kNumFields = std::tuple_size_v<Fields>;

// Formats each field of a statement, in the order of FieldsOf(); empty if the field is not
// applicable.
constexpr std::string (*kSays[])(const Terms&) = {
    [](const Terms& t) { return std::string(Name(t.kind)); },
    [](const Terms& t) { return Reduces(t.kind) ? std::string(Name(t.reduce_op)) : ""; },
    [](const Terms& t) { return HasRoot(t.kind) ? "root " + std::to_string(t.root) : ""; },
    [](const Terms& t) { return "prescale factor " + FormatNumber(t.prescale); },
    [](const Terms& t) { return "postscale factor " + FormatNumber(t.postscale); },
    [](const Terms& t) {
      return t.encoding.IsNone() ? "not compressed" : "compressed to " + Name(t.encoding);
    },
    [](const Terms& t) { return std::string(t.on_device ? "on the GPU" : "on the CPU"); },
    [](const Terms& t) { return t.ranks.empty() ? "" : "the set of " + RankList(t.ranks); },
    [](const Terms& t) {
      if (t.kind != OpKind::kAddProcessSet) return std::string();
      return std::string(t.distinct ? "distinct" : "not distinct");
    },
    [](const Terms& t) {
      if (t.kind != OpKind::kRemoveProcessSet) return std::string();
      return t.target_set < 0 ? "no registered process set"
                              : "process set " + std::to_string(t.target_set);
    },
    [](const Terms& t) {
      if (t.kind != OpKind::kReducescatter) return std::string();
      return t.splits.empty() ? "no splits" : FormatSplits(t.splits);
    },
    [](const Terms& t) {
      if (t.reduce_op != ReduceOp::kAdasum) return std::string();
      return "Adasum from level " + std::to_string(t.adasum_start_level) + " on";
    },
};
static_assert(std::size(kSays) == kNumFields);

template <typename Property>
bool Differs(const Statements& statements, Property property) {
  return std::any_of(statements.begin(), statements.end(), [&](const Statement& statement) {
    return property(*statement.signature) != property(*statements[0].signature);
  });
}

// The fields in which the statements differ.
std::array<bool, kNumFields> DifferingFields(const Statements& statements) {
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return std::array{
        Differs(statements, [](const Terms& terms) { return std::get<i>(FieldsOf(terms)); })...};
  }(std::make_index_sequence<kNumFields>());
}

// Formats the tensors: their number if it differs, otherwise those that differ, numbered in a
// group.
std::string FormatTensors(const Signature& signature, const Statements& statements) {
  const size_t count = signature.tensors.size();
  if (Differs(statements, [](const Signature& s) { return s.tensors.size(); }) && count != 1) {
    return std::to_string(count) + " tensors";
  }
  if (count == 1) return FormatTensor(signature.tensors[0]);
  std::string text;
  size_t listed = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!Differs(statements, [i](const Signature& s) { return s.tensors[i]; })) continue;
    if (!text.empty()) text += ", ";
    if (++listed > kMaxListed) return text + "…";
    text += "tensor " + std::to_string(i) + " of the group " + FormatTensor(signature.tensors[i]);
  }
  return text;
}

}  // namespace

std::string FormatTensor(const TensorSpec& tensor) {
  std::string text(Name(tensor.dtype));
  text += "[";
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += tensor.shape[i] == kFreeDimension ? "*" : std::to_string(tensor.shape[i]);
  }
  return text + "]";
}

std::string DescribeMismatch(std::string_view display_name, int process_set_id,
                             const std::vector<Statement>& statements) {
  std::string text = "the ranks of process set " + std::to_string(process_set_id) +
                     " disagree about \"" + Shorten(display_name) + "\": ";
  const std::array<bool, kNumFields> differs = DifferingFields(statements);
  const bool tensors_differ = Differs(statements, [](const Signature& s) { return s.tensors; });
  for (size_t i = 0; i < statements.size(); ++i) {
    if (i > 0) text += "; ";
    if (i == kMaxListed) return text + "…";
    text += RankList(statements[i].ranks) + ":";
    const Signature& signature = *statements[i].signature;
    const char* before = " ";
    const auto say = [&](const std::string& said) {
      if (said.empty()) return;
      text += before + said;
      before = ", ";
    };
    for (size_t field = 0; field < kNumFields; ++field) {
      if (differs[field]) say(kSays[field](signature));
      if (field == 0 && tensors_differ) say(FormatTensors(signature, statements));
    }
  }
  return text;
}

}  // namespace horoscale
