#include "runtime/adapted_tensors.h"

#include <cmath>
#include <utility>

#include "collectives/residuals.h"

namespace horoscale {

AdaptedTensor* AdaptedTensors::Find(const std::string& name) {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return &found->second;
  return by_name_.size() < kMost && !name.empty() ? &by_name_[name] : nullptr;
}

void AdaptedTensors::OnBucket(const Action& action, const FusedOperation& fused,
                              const PendingOperations& pending) {
  const Encoding& encoding = action.common.encoding;
  for (size_t i = 0; i < action.pieces.size(); ++i) {
    Operation* const operation = pending.Find(action.pieces[i].token);
    if (operation == nullptr || !operation->request.signature.encoding.IsAdaptive()) continue;
    operation->encoding = encoding;
    if (i < fused.residuals.size() && fused.residuals[i] != nullptr) {
      TensorResiduals& residuals = *fused.residuals[i];
      operation->squares += std::exchange(residuals.squares, 0);
      operation->error_squares += std::exchange(residuals.error_squares, 0);
    }
    AdaptedTensor* const adapted = Find(operation->request.name);
    if (adapted == nullptr) continue;
    if (adapted->buckets++ > 0 && adapted->encoding != encoding) ++adapted->changes;
    adapted->encoding = encoding;
    const auto count = static_cast<double>(action.pieces[i].count);
    adapted->bytes_before += static_cast<uint64_t>(fused.pieces[i].bytes);
    adapted->bytes_after +=
        static_cast<uint64_t>(std::ceil(count * encoding.BytesPerElement(action.dtype)));
  }
}

double AdaptedTensors::OnEnded(const Operation& operation) {
  if (!(operation.squares > 0)) return -1;
  const double error = std::sqrt(operation.error_squares / operation.squares);
  const auto found = by_name_.find(operation.request.name);
  if (found != by_name_.end()) found->second.relative_error = error;
  return error;
}

}  // namespace horoscale
