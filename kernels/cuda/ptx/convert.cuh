// Conversions between float and half, and the approximations of the special function unit (PTX ISA, cvt,
// ex2, rcp).
#pragma once

#include <cstdint>

namespace ptx {

// The value of a half, given as its bits; exact.
__device__ __forceinline__ float half_to_float(uint16_t bits) {
  float result;
  asm("{ .reg .f16 h; mov.b16 h, %1; cvt.f32.f16 %0, h; }" : "=f"(result) : "h"(bits));
  return result;
}

// The bits of the nearest half, ties to even.
__device__ __forceinline__ uint16_t float_to_half(float x) {
  uint16_t result;
  asm("{ .reg .f16 h; cvt.rn.f16.f32 h, %1; mov.b16 %0, h; }" : "=h"(result) : "f"(x));
  return result;
}

// The same of two floats, x in the lower bits (sm_80).
__device__ __forceinline__ uint32_t floats_to_halves(float x, float y) {
  uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(y), "f"(x));
  return result;
}

// 2^x to two units in the last place; denormal results are zero.
__device__ __forceinline__ float exp2_approximate(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1 / x to one unit in the last place; denormal operands and results are zero.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace ptx
