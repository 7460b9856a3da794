// The error message of a mismatch: the differing properties of each rank's request.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"

namespace horoscale {

struct Statement {
  const Signature* signature = nullptr;
  std::vector<int> ranks;  // global, ascending
};

// "float32[3, 4]".
std::string FormatTensor(const TensorSpec& tensor);

std::string DescribeMismatch(std::string_view display_name, int process_set_id,
                             const std::vector<Statement>& statements);

}  // namespace horoscale
