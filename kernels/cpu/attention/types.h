// Storage types of the CPU attention kernels and their exact conversions.
//
// Torch-free stand-ins for the floating-point types that C++17 lacks. Each holds the bits that a
// torch tensor holds. `widen` is exact; `narrow` rounds to nearest, ties to even, as torch does.
// Every function is branch-free on integers, so loops over them become vector code on any target.
#pragma once

#include <cstdint>

struct Half {  // IEEE binary16: 1 sign, 5 exponent, 10 fraction bits
  uint16_t bits;
};

struct BFloat16 {  // upper half of an IEEE binary32
  uint16_t bits;
};

struct Float8E4M3 {  // torch.float8_e4m3fn: bias 7, no infinity, NaN is S.1111.111
  uint8_t bits;
};

struct Float8E5M2 {  // torch.float8_e5m2: the upper byte of a binary16
  uint8_t bits;
};

namespace attention {
namespace {

// The type that a stored type is computed in.
template <typename T>
struct Compute {
  using type = float;
};
template <>
struct Compute<double> {
  using type = double;
};

inline float float_of_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// `when` where the condition holds, else `otherwise`. Masks, not branches: compilers do not vectorise a
// branch around floating-point arithmetic.
inline uint32_t select(bool condition, uint32_t when, uint32_t otherwise) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (when & mask) | (otherwise & ~mask);
}

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(int8_t x) { return static_cast<float>(x); }
inline float widen(uint8_t x) { return static_cast<float>(x); }
inline float widen(BFloat16 x) { return float_of_bits(static_cast<uint32_t>(x.bits) << 16); }

// Half's subnormals go through a subtraction of normal numbers: exact also where the processor
// flushes denormals to zero.
inline float widen_half_bits(uint32_t half) {
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & 0x0f800000u;
  const uint32_t normal = magnitude + select(exponent == 0x0f800000u, 224u << 23, 112u << 23);
  const uint32_t subnormal = bits_of_float(float_of_bits(magnitude + (113u << 23)) - 0x1p-14f);
  return float_of_bits(select(exponent == 0, subnormal, normal) | (half & 0x8000u) << 16);
}

inline float widen(Half x) { return widen_half_bits(x.bits); }
inline float widen(Float8E5M2 x) { return widen_half_bits(static_cast<uint32_t>(x.bits) << 8); }

inline float widen(Float8E4M3 x) {
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fu) << 20;
  const uint32_t normal = select(magnitude == (0x7fu << 20), 0x7fc00000u, magnitude + (120u << 23));
  const uint32_t subnormal = bits_of_float(float_of_bits(magnitude + (121u << 23)) - 0x1p-6f);
  return float_of_bits(select(magnitude < (8u << 20), subnormal, normal) |
                       static_cast<uint32_t>(x.bits & 0x80u) << 24);
}

inline void narrow(float x, float* out) { *out = x; }
inline void narrow(double x, double* out) { *out = x; }

inline void narrow(float x, BFloat16* out) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  out->bits = static_cast<uint16_t>(select((bits & 0x7fffffffu) > 0x7f800000u, 0x7fc0u, rounded));
}

inline void narrow(float x, Half* out) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  // 0.5 has the spacing of half's subnormals, so the addition does the rounding.
  const uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0.5f) - (126u << 23);
  uint32_t half = select(magnitude < (113u << 23), subnormal, normal);
  half = select(magnitude >= 0x477ff000u, 0x7c00u, half);  // 65520 and above round to infinity
  half = select(magnitude > 0x7f800000u, 0x7e00u, half);
  out->bits = static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
}

}  // namespace
}  // namespace attention
