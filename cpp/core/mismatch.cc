#include "core/mismatch.h"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "base/rank_list.h"

namespace horoscale {
namespace {

// Longer lists end with "…": a message is for people.
constexpr size_t kMaxListed = 32;
constexpr size_t kMaxNameShown = 512;

std::string FormatNumber(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", number);
  return text;
}

std::string Clip(std::string_view text) {
  if (text.size() <= kMaxNameShown) return std::string(text);
  return std::string(text.substr(0, kMaxNameShown)) + "…";
}

using Statements = std::vector<Statement>;

template <typename Field>
bool Differs(const Statements& statements, Field field) {
  return std::any_of(statements.begin(), statements.end(), [&](const Statement& statement) {
    return field(*statement.signature) != field(*statements[0].signature);
  });
}

bool Reduces(OpKind kind) { return kind == OpKind::kAllreduce || kind == OpKind::kReducescatter; }

// What a statement says of one field (nothing where it has no meaning), and whether the statements
// differ in it.
struct FieldText {
  bool differs;
  std::function<std::string(const Signature&)> text;
};

// The tensors: their number if that differs, else those that differ, numbered in a group.
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

std::vector<FieldText> Fields(const Statements& statements) {
  return {
      {Differs(statements, [](const Signature& s) { return s.kind; }),
       [](const Signature& s) { return std::string(Name(s.kind)); }},
      {Differs(statements, [](const Signature& s) { return s.tensors; }),
       [&](const Signature& s) { return FormatTensors(s, statements); }},
      {Differs(statements, [](const Signature& s) { return s.reduce_op; }),
       [](const Signature& s) { return Reduces(s.kind) ? std::string(Name(s.reduce_op)) : ""; }},
      {Differs(statements, [](const Signature& s) { return s.root; }),
       [](const Signature& s) {
         return s.kind == OpKind::kBroadcast ? "root " + std::to_string(s.root) : "";
       }},
      {Differs(statements, [](const Signature& s) { return s.prescale; }),
       [](const Signature& s) { return "prescale factor " + FormatNumber(s.prescale); }},
      {Differs(statements, [](const Signature& s) { return s.postscale; }),
       [](const Signature& s) { return "postscale factor " + FormatNumber(s.postscale); }},
      {Differs(statements, [](const Signature& s) { return s.wire_dtype; }),
       [](const Signature& s) {
         return s.wire_dtype ? "compressed to " + std::string(Name(*s.wire_dtype))
                             : std::string("not compressed");
       }},
      {Differs(statements, [](const Signature& s) { return s.on_device; }),
       [](const Signature& s) { return std::string(s.on_device ? "on the GPU" : "on the CPU"); }},
      {Differs(statements, [](const Signature& s) { return s.ranks; }),
       [](const Signature& s) { return s.ranks.empty() ? "" : "the set of " + RankList(s.ranks); }},
      {Differs(statements, [](const Signature& s) { return s.target_set; }),
       [](const Signature& s) {
         if (s.kind != OpKind::kRemoveProcessSet) return std::string();
         return s.target_set < 0 ? "no registered process set"
                                 : "process set " + std::to_string(s.target_set);
       }},
  };
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
                     " disagree about \"" + Clip(display_name) + "\": ";
  const std::vector<FieldText> fields = Fields(statements);
  for (size_t i = 0; i < statements.size(); ++i) {
    if (i > 0) text += "; ";
    if (i == kMaxListed) return text + "…";
    text += RankList(statements[i].ranks) + ":";
    bool first = true;
    for (const FieldText& field : fields) {
      const std::string said = field.differs ? field.text(*statements[i].signature) : "";
      if (said.empty()) continue;
      text += (first ? " " : ", ") + said;
      first = false;
    }
  }
  return text;
}

}  // namespace horoscale
