// Storage types and their conversion to and from the accumulator, without CUDA's own
// fp16/bf16/fp8 headers: parsing those costs more than compiling the kernels.
//
// Conversions to float are exact. Conversions from float round to nearest even.
#pragma once

#include <cstdint>

#include "cuda/ptx/convert.cuh"

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct Float8E4M3 {  // 1 sign, 4 exponent, 3 mantissa bits; no infinities, NaN is 0x7f
  uint8_t bits;
};
struct Float8E5M2 {  // the upper byte of a Half
  uint8_t bits;
};

// The type a kernel computes in for a storage type.
template <typename T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};

__device__ __forceinline__ float to_accumulator(float x) { return x; }
__device__ __forceinline__ double to_accumulator(double x) { return x; }
__device__ __forceinline__ float to_accumulator(int8_t x) { return static_cast<float>(x); }
__device__ __forceinline__ float to_accumulator(uint8_t x) { return static_cast<float>(x); }
__device__ __forceinline__ float to_accumulator(Half x) { return ptx::half_to_float(x.bits); }
__device__ __forceinline__ float to_accumulator(BFloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ float to_accumulator(Float8E5M2 x) {
  return ptx::half_to_float(static_cast<uint16_t>(x.bits << 8));
}
// Shifted into a Half the exponent is read with bias 15 in place of 7: 2^8 too small.
// Subnormals come out right as well.
__device__ __forceinline__ float to_accumulator(Float8E4M3 x) {
  const uint16_t half = static_cast<uint16_t>(((x.bits & 0x80) << 8) | ((x.bits & 0x7f) << 7));
  const float value = ptx::half_to_float(half) * 256.0f;
  return (x.bits & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : value;
}

template <typename T>
__device__ __forceinline__ T from_accumulator(typename AccumulatorOf<T>::type x);
template <>
__device__ __forceinline__ float from_accumulator<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ double from_accumulator<double>(double x) {
  return x;
}
template <>
__device__ __forceinline__ Half from_accumulator<Half>(float x) {
  return Half{ptx::float_to_half(x)};
}
// By hand: the instruction for bfloat16 needs sm_80.
template <>
__device__ __forceinline__ BFloat16 from_accumulator<BFloat16>(float x) {
  const uint32_t bits = __float_as_uint(x);
  if (x != x) return BFloat16{0x7fff};
  return BFloat16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// Four neighbours, moved as one unit.
template <typename T>
struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) Vec4 {
  T x[4];
};

// Moves a vector of four outputs in accesses of up to 16 bytes; the compiler does not merge
// element copies.
template <typename T>
__device__ __forceinline__ void store_vector(T* target, const Vec4<T>& value) {
  if constexpr (sizeof(value) == 8) {
    uint2 bits;
    memcpy(&bits, &value, sizeof(bits));
    *reinterpret_cast<uint2*>(target) = bits;
  } else {
    uint4 bits[sizeof(value) / 16];
    memcpy(bits, &value, sizeof(bits));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(value) / 16); ++i) reinterpret_cast<uint4*>(target)[i] = bits[i];
  }
}
