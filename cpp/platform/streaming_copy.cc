#include "platform/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace horoscale {

#if defined(__SSE2__)

void StreamingCopy(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kLine = 64;
  // Whole lines, which leave the core without being read.
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % kLine);
  const size_t end = head + (bytes - head) / kLine * kLine;
  std::memcpy(to, from, head);
  for (size_t i = head; i < end; i += kLine) {
    for (size_t j = i; j < i + kLine; j += sizeof(__m128i)) {
      const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + j));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + j), part);
    }
  }
  std::memcpy(to + end, from + end, bytes - end);
  _mm_sfence();  // these stores are not ordered by a release store
}

#else

void StreamingCopy(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace horoscale
