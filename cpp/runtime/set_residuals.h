// SetResiduals: what lossy encodings have lost of a process set's tensors on this member, until it
// is sent with their next values. It belongs to the set: one of the same ranks that is made later
// begins with none.
//
// Any thread may ask; values are written while an operation that has them runs.
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
  // More are not kept: names may be made anew for each call.
  static constexpr size_t kMostTensors = 65'536;

  explicit SetResiduals(const SetPlace& place) : self_(place.self), ranks_(place.ranks) {}

  // Of a tensor of an operation; null: they are not kept.
  std::shared_ptr<TensorResiduals> Of(const std::string& name, uint32_t tensor);

  // As bytes, and back. kMismatch: they are another member's, or another set's; kInvalidArgument:
  // they are none. Then nothing has changed.
  std::vector<std::byte> Save() const;
  Status Load(std::span<const std::byte> bytes);

  // Multiplies them, as where gradients have another scale from now on; by 0: forgets them.
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
