#include "core/fusion_planner.h"

#include <algorithm>
#include <numeric>

#include "core/codec.h"

namespace horoscale {
namespace {

// Tensors are split at multiples of this many elements, so that parts are aligned for the fold
// kernels.
constexpr int64_t kCutElements = 64;

int64_t CutElements(const Encoding& encoding) {
  return encoding.IsLossy() ? kGroupElements : kCutElements;
}

bool MayFuse(OpKind kind) {
  return kind == OpKind::kAllreduce || kind == OpKind::kBroadcast || kind == OpKind::kAllgather ||
         kind == OpKind::kReducescatter || kind == OpKind::kReduce || kind == OpKind::kGather;
}

// For other kinds, each member receives its own rows, so a range of elements is not a part of the
// result. Nor is it with Adasum, whose weights depend on whole tensors.
bool MayCut(const Terms& terms) {
  if (terms.kind == OpKind::kAllreduce) return terms.reduce_op != ReduceOp::kAdasum;
  return terms.kind == OpKind::kBroadcast || terms.kind == OpKind::kReduce;
}

int64_t BytesOf(const TensorSpec& tensor) {
  return tensor.NumElements() * static_cast<int64_t>(SizeOf(tensor.dtype));
}

}  // namespace

bool FusionPlanner::IsCut(const Signature& signature) const {
  return limits_.partition_bytes > 0 && MayCut(signature) && signature.tensors.size() == 1 &&
         BytesOf(signature.tensors[0]) > limits_.partition_bytes;
}

bool FusionPlanner::FitsOneBucket(const Signature& signature) const {
  const std::vector<TensorSpec>& tensors = signature.tensors;
  if (tensors.size() <= 1) return !IsCut(signature);
  const bool one_dtype = std::all_of(tensors.begin(), tensors.end(), [&](const TensorSpec& tensor) {
    return tensor.dtype == tensors[0].dtype;
  });
  return one_dtype && MayFuse(signature.kind) && signature.TotalBytes() <= limits_.bucket_bytes;
}

FusionPlanner::Form FusionPlanner::FormOf(const Signature& signature) const {
  if (IsCut(signature)) return Form::kCut;
  return FitsOneBucket(signature) ? Form::kWhole : Form::kDivided;
}

FusionClass FusionPlanner::ClassOf(const Signature& signature, std::vector<uint32_t> absent,
                                   uint64_t order) const {
  FusionClass result;
  result.terms = signature;
  if (!signature.tensors.empty()) result.dtype = signature.tensors[0].dtype;
  result.absent = std::move(absent);
  const bool shares = MayFuse(signature.kind) && FormOf(signature) != Form::kDivided;
  result.alone = shares ? 0 : order;
  return result;
}

Part FusionPlanner::Cut(UnitId unit, const Signature& signature, uint32_t tensor,
                        int64_t begin) const {
  const TensorSpec& spec = signature.tensors[tensor];
  const auto element_bytes = static_cast<int64_t>(SizeOf(spec.dtype));
  Part part{.unit = unit, .whole = false, .tensor = tensor, .begin = begin};
  part.count = spec.NumElements() - begin;
  if (limits_.partition_bytes > 0 && MayCut(signature)) {
    const int64_t step = CutElements(signature.encoding);
    const int64_t elements = limits_.partition_bytes / element_bytes / step * step;
    part.count = std::min(part.count, std::max(elements, step));
  }
  part.bytes = part.count * element_bytes;
  part.is_last = begin + part.count == spec.NumElements();
  return part;
}

std::vector<Bucket> FusionPlanner::Divide(UnitId unit, const Signature& signature) const {
  const std::vector<TensorSpec>& tensors = signature.tensors;
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return tensors[a].dtype < tensors[b].dtype; });
  std::vector<Bucket> buckets;
  DataType dtype{};
  for (uint32_t tensor : order) {
    int64_t begin = 0;
    do {
      const Part part = Cut(unit, signature, tensor, begin);
      const bool continues = !buckets.empty() && MayFuse(signature.kind) &&
                             tensors[tensor].dtype == dtype &&
                             buckets.back().parts.size() < kMaxPlanItems &&
                             buckets.back().bytes + part.bytes <= limits_.bucket_bytes;
      if (!continues) buckets.emplace_back();
      buckets.back().Add(part);
      buckets.back().parts.back().is_last = false;
      dtype = tensors[tensor].dtype;
      begin += part.count;
    } while (begin < tensors[tensor].NumElements());
  }
  buckets.back().parts.back().is_last = true;
  return buckets;
}

}  // namespace horoscale
