// The arithmetic of the double: left folds in the order of the ranks.
#pragma once

#include <cstddef>
#include <vector>

namespace nccl_double {

// One of NCCL's operators, or a sum of values multiplied by `factor` first.
struct Operator {
  int number = 0;
  double factor = 1.0;
};

size_t SizeOfType(int type);
double ScalarOf(const void* scalar, int type);
void FoldInto(char* out, const std::vector<const char*>& in, size_t count, int type, Operator op);

}  // namespace nccl_double
