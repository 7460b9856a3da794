// SetResiduals: the residuals of lossy encodings for a process set's tensors on this member, which
// are added to their next values. They belong to the set: a later set of the same ranks starts
// without residuals.
//
// Any thread; values are written while an operation with residuals runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/residuals.h"
#include "runtime/set_place.h"

namespace horoscale {

class SetResiduals {
 public:
  // Limit, because programs may use a new name for each call.
  static constexpr size_t kMostTensors = 65'536;

  explicit SetResiduals(const SetPlace& place) : self_(place.self), ranks_(place.ranks) {}

  // The residuals for a tensor of an operation; null if the limit is reached.
  std::shared_ptr<TensorResiduals> Of(const std::string& name, uint32_t tensor);

  // Save as bytes, and load. kMismatch: they belong to another member or set; kInvalidArgument: the
  // bytes are not residuals. Nothing is changed on failure.
  std::vector<std::byte> Save() const;
  Status Load(std::span<const std::byte> bytes);

  // Multiplies them, for gradients whose scale changes; 0 clears them.
  void Scale(double factor);

 private:
  using Key = std::pair<std::string, uint32_t>;
  using Table = std::map<Key, std::shared_ptr<TensorResiduals>>;

  const uint32_t self_;
  const std::vector<int> ranks_;
  mutable std::mutex mutex_;
  Table tensors_;
};

}  // namespace horoscale
