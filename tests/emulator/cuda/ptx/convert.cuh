// Stands in for the header of this name: _Float16 rounds as cvt.rn does; ex2 and rcp are exact here.
#pragma once

namespace ptx {

inline float half_to_float(uint16_t bits) { return static_cast<float>(bits_as<_Float16>(bits)); }
inline uint16_t float_to_half(float x) { return bits_as<uint16_t>(static_cast<_Float16>(x)); }
inline uint32_t floats_to_halves(float x, float y) {
  return static_cast<uint32_t>(float_to_half(y)) << 16 | float_to_half(x);
}
inline float without_denormals(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float exp2_approximate(float x) { return without_denormals(std::exp2(x)); }
inline float reciprocal_approximate(float x) { return without_denormals(1.0f / without_denormals(x)); }

}  // namespace ptx
