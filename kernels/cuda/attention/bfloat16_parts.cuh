// Exact splits into bfloat16 parts, x = x0 + x1 + x2, and the sums of products of parts.
//
// A part is a truncation, so that three of 8 significant bits hold the 24 of a float at any
// magnitude but the denormal.
#pragma once

#include <cstdint>

#include "cuda/types.cuh"

namespace attention {

template <typename T>
constexpr bool IS_BFLOAT16 = false;
template <>
constexpr bool IS_BFLOAT16<BFloat16> = true;

// bfloat16 parts that hold an element exactly. Scaling fills the mantissa of all but the 8-bit
// types, whose scales are applied later.
template <typename T, bool SCALED>
constexpr int parts_of() {
  if (sizeof(T) == 1) return 1;
  if (SCALED || sizeof(T) == 4) return 3;
  return IS_BFLOAT16<T> ? 1 : 2;
}

// Splits a pair of floats into PARTS pairs of bfloat16 by truncation; returns what is left of
// both, zero unless one is not finite.
template <int PARTS>
__device__ __forceinline__ float split_pair(float x, float y, uint32_t (&part)[PARTS]) {
  constexpr uint32_t UPPER = 0xffff0000u;
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    part[i] = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
    x -= __uint_as_float(__float_as_uint(x) & UPPER);
    y -= __uint_as_float(__float_as_uint(y) & UPPER);
  }
  return x + y;
}

// A 16 x 8 output tile, one accumulator for each magnitude of products.
template <int LEVELS>
struct SplitAccumulator {
  float level[LEVELS][4] = {};

  __device__ __forceinline__ float sum(int i) const {
    if constexpr (LEVELS == 1) return level[0][i];
    if constexpr (LEVELS == 2) return level[0][i] + level[1][i];
    if constexpr (LEVELS == 3) return level[0][i] + (level[1][i] + level[2][i]);
  }
};

}  // namespace attention
