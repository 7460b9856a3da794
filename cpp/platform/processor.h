// Which vector instructions this processor has, and the operating system saves the registers of.
#pragma once

namespace horoscale {

struct VectorInstructions {
  bool avx2 = false;    // with F16C
  bool avx512 = false;  // F, BW, DQ and VL
};

VectorInstructions FindVectorInstructions();

}  // namespace horoscale
