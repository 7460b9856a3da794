#include "runtime/adapted_tensors.h"

#include <cmath>
#include <utility>

#include "collectives/residuals.h"

namespace horoscale {

void AdaptedTensors::Count(const std::string& name, const Encoding& encoding, uint64_t bytes_before,
                           uint64_t bytes_after) {
  auto found = positions_->find(name);
  if (found == positions_->end()) {
    if (name.empty() || tensors_.size() == kMost) return;
    found = positions_->emplace(name, tensors_.size()).first;
    tensors_.push_back({&found->first, encoding});
  }
  AdaptedTensor& tensor = tensors_[found->second];
  if (tensor.encoding != encoding) ++tensor.changes;
  tensor.encoding = encoding;
  tensor.bytes_before += bytes_before;
  tensor.bytes_after += bytes_after;
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
    const auto count = static_cast<double>(action.pieces[i].count);
    Count(operation->request.name, encoding, static_cast<uint64_t>(fused.pieces[i].bytes),
          static_cast<uint64_t>(std::ceil(count * encoding.BytesPerElement(action.dtype))));
  }
}

double AdaptedTensors::OnEnded(const Operation& operation) {
  if (!(operation.squares > 0)) return -1;
  const double error = std::sqrt(operation.error_squares / operation.squares);
  const auto found = positions_->find(operation.request.name);
  if (found != positions_->end()) tensors_[found->second].relative_error = error;
  return error;
}

}  // namespace horoscale
