#include "platform/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>

namespace horoscale {
namespace {

// Bits of XCR0: the registers that the operating system saves.
constexpr uint64_t kAvxState = 0x06;     // xmm and ymm
constexpr uint64_t kAvx512State = 0xe6;  // these, the masks and zmm

constexpr unsigned kAvx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;

bool HasAll(uint64_t value, uint64_t bits) { return (value & bits) == bits; }

uint64_t SavedRegisters() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

}  // namespace

// Some compilers lack parts of __builtin_cpu_supports(): clang 14 doesn't know F16C, and zig's
// runtime library lacks its symbols.
VectorInstructions FindVectorInstructions() {
  VectorInstructions found;
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return found;
  if (!HasAll(ecx, bit_OSXSAVE | bit_AVX | bit_F16C)) return found;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return found;
  const uint64_t saved = SavedRegisters();
  found.avx2 = HasAll(saved, kAvxState) && HasAll(ebx, bit_AVX2);
  found.avx512 = found.avx2 && HasAll(saved, kAvx512State) && HasAll(ebx, kAvx512);
  return found;
}

}  // namespace horoscale

#else

namespace horoscale {

VectorInstructions FindVectorInstructions() { return {}; }

}  // namespace horoscale

#endif
