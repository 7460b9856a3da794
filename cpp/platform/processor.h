// Detects the vector instructions that the processor and the operating system support.
#pragma once

namespace horoscale {

struct VectorInstructions {
  bool avx2 = false;    // with F16C
  bool avx512 = false;  // F, BW, DQ and VL
};

VectorInstructions FindVectorInstructions();

}  // namespace horoscale
