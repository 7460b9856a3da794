// Compiler spellings for the kernel families.
#pragma once

// The next loop may be vectorised without checks: dst is one of its sources, or apart from them.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // a loop that stays scalar is not an error
#define HS_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define HS_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

// From HS_BEGIN_… to HS_END_TARGET functions are compiled for these instructions. Headers come
// before: their inline functions are the whole program's.
#define HS_PRAGMA(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
#define HS_BEGIN_TARGET(instructions) \
  HS_PRAGMA(clang attribute push(__attribute__((target(instructions))), apply_to = function))
#define HS_BEGIN_AVX512 HS_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")
#define HS_END_TARGET HS_PRAGMA(clang attribute pop)
#else
#define HS_BEGIN_TARGET(instructions) \
  HS_PRAGMA(GCC push_options) HS_PRAGMA(GCC target(instructions))
#define HS_BEGIN_AVX512 \
  HS_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,prefer-vector-width=512")
#define HS_END_TARGET HS_PRAGMA(GCC pop_options)
#endif
#define HS_BEGIN_AVX2 HS_BEGIN_TARGET("avx2,f16c")

// The product is rounded before it is used. From version 12 GCC's vectoriser fuses the products and
// sums of a complex multiplication even with -ffp-contract=off; the barrier keeps them apart.
#if __has_builtin(__builtin_assoc_barrier)
#define HS_ROUNDED(product) __builtin_assoc_barrier(product)
#else
#define HS_ROUNDED(product) (product)
#endif
