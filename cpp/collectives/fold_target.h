// Compiler spellings for the kernel families.
#pragma once

// The next loop may be vectorised without checks: dst is one of its sources, or apart from them.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // a loop that stays scalar is not an error
#define HS_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define HS_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

// The product is rounded before it is used. From version 12 GCC's vectoriser fuses the products and
// sums of a complex multiplication even with -ffp-contract=off; the barrier keeps them apart.
#if __has_builtin(__builtin_assoc_barrier)
#define HS_ROUNDED(product) __builtin_assoc_barrier(product)
#else
#define HS_ROUNDED(product) (product)
#endif
