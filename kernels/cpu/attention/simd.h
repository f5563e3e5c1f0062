// Vectors as wide as the target has, through the GCC and Clang vector extensions.
//
// No intrinsics: one text serves AVX2, AVX-512 and NEON. `acc += a * b` on vectors becomes one fused
// multiply-add (both compilers contract within an expression).
#pragma once

#include <cstdint>
#include <utility>

namespace attention {
namespace {

// Register blocking of the micro-kernels: TILE_ROWS x TILE_VECTORS accumulators, with room left for
// TILE_VECTORS operands and one broadcast, and at least 8 accumulators to hide a 4-cycle latency on
// two multiply-add units.
#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;  // 32 registers; rows in multiples of 8 keep a small tile's waste low
constexpr int TILE_ROWS = 8;
constexpr int TILE_VECTORS = 2;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32;  // 16 registers
constexpr int TILE_ROWS = 6;
constexpr int TILE_VECTORS = 2;
#elif defined(__aarch64__)
constexpr int VECTOR_BYTES = 16;  // 32 registers
constexpr int TILE_ROWS = 6;
constexpr int TILE_VECTORS = 4;
#else
constexpr int VECTOR_BYTES = 16;  // 16 registers
constexpr int TILE_ROWS = 6;
constexpr int TILE_VECTORS = 2;
#endif

template <typename C>
struct Simd;

template <>
struct Simd<float> {
  using Int = int32_t;
  typedef float Vec __attribute__((vector_size(VECTOR_BYTES), may_alias));
  typedef float Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(4)));
  typedef int32_t IntVec __attribute__((vector_size(VECTOR_BYTES), may_alias));
  static constexpr int WIDTH = VECTOR_BYTES / 4;
};

template <>
struct Simd<double> {
  using Int = int64_t;
  typedef double Vec __attribute__((vector_size(VECTOR_BYTES), may_alias));
  typedef double Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(8)));
  typedef int64_t IntVec __attribute__((vector_size(VECTOR_BYTES), may_alias));
  static constexpr int WIDTH = VECTOR_BYTES / 8;
};

template <typename C>
using Vec = typename Simd<C>::Vec;

template <typename C>
inline Vec<C> load(const C* p) {
  return *reinterpret_cast<const Vec<C>*>(p);
}

template <typename C>
inline Vec<C> load_unaligned(const C* p) {
  return *reinterpret_cast<const typename Simd<C>::Unaligned*>(p);
}

// A vector of doubles from as many floats.
inline Vec<double> load_widened(const float* p) {
  typedef float Narrow __attribute__((vector_size(VECTOR_BYTES / 2), may_alias));
  return __builtin_convertvector(*reinterpret_cast<const Narrow*>(p), Vec<double>);
}

template <typename C>
inline void store(C* p, Vec<C> value) {
  *reinterpret_cast<Vec<C>*>(p) = value;
}

template <typename C>
inline Vec<C> splat(C value) {
  return value - Vec<C>{};
}

template <typename C>
inline typename Simd<C>::IntVec splat_int(typename Simd<C>::Int value) {
  return value - typename Simd<C>::IntVec{};
}

// Where a lane of a is NaN the result is b's lane (x86's max instruction).
template <typename C>
inline Vec<C> maximum(Vec<C> a, Vec<C> b) {
  return a > b ? a : b;
}

template <typename C>
inline typename Simd<C>::IntVec lane_numbers() {
  typename Simd<C>::IntVec lanes;
  for (int i = 0; i < Simd<C>::WIDTH; ++i) lanes[i] = i;
  return lanes;
}

#if defined(__clang__)
#define KERNELS_SHUFFLE(a, b, C, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define KERNELS_SHUFFLE(a, b, C, ...) __builtin_shuffle(a, b, typename Simd<C>::IntVec{__VA_ARGS__})
#endif

// (a, b) -> rows i and i + STEP of a transposition step: blocks of STEP lanes change places.
template <typename C, int STEP, int... LANE>
inline void exchange(Vec<C>& a, Vec<C>& b, std::integer_sequence<int, LANE...>) {
  constexpr int WIDTH = Simd<C>::WIDTH;
  const Vec<C> low = KERNELS_SHUFFLE(a, b, C, ((LANE & STEP) ? WIDTH + LANE - STEP : LANE)...);
  const Vec<C> high = KERNELS_SHUFFLE(a, b, C, ((LANE & STEP) ? WIDTH + LANE : LANE + STEP)...);
  a = low;
  b = high;
}

template <typename C, int STEP>
inline void transpose_steps(Vec<C> (&rows)[Simd<C>::WIDTH]) {
  constexpr int WIDTH = Simd<C>::WIDTH;
  if constexpr (STEP < WIDTH) {
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; ++i) {
      if (!(i & STEP)) exchange<C, STEP>(rows[i], rows[i + STEP], std::make_integer_sequence<int, WIDTH>());
    }
    transpose_steps<C, 2 * STEP>(rows);
  }
}

// Transposes WIDTH x WIDTH elements in registers.
template <typename C>
inline void transpose(Vec<C> (&rows)[Simd<C>::WIDTH]) {
  transpose_steps<C, 1>(rows);
}

template <typename C, int STEP, int... LANE>
inline Vec<C> rotate(Vec<C> a, std::integer_sequence<int, LANE...>) {
  return KERNELS_SHUFFLE(a, a, C, (LANE ^ STEP)...);
}

template <typename C, int STEP = Simd<C>::WIDTH / 2>
inline C horizontal_max(Vec<C> a) {
  if constexpr (STEP == 0) {
    return a[0];
  } else {
    a = maximum<C>(rotate<C, STEP>(a, std::make_integer_sequence<int, Simd<C>::WIDTH>()), a);
    return horizontal_max<C, STEP / 2>(a);
  }
}

template <typename C, int STEP = Simd<C>::WIDTH / 2>
inline C horizontal_sum(Vec<C> a) {
  if constexpr (STEP == 0) {
    return a[0];
  } else {
    a += rotate<C, STEP>(a, std::make_integer_sequence<int, Simd<C>::WIDTH>());
    return horizontal_sum<C, STEP / 2>(a);
  }
}

#undef KERNELS_SHUFFLE

// Minimax polynomials of 2^f on [-1/2, 1/2] with constant term 1 (so that 2^0 is exactly 1), highest
// power first. Relative error 2.6e-9 (float) and 1.8e-17 (double) before rounding.
template <typename C>
struct Exp2;

template <>
struct Exp2<float> {
  static constexpr float COEFFICIENTS[] = {
      0x1.470b4ap-13f, 0x1.5f7276p-10f, 0x1.3b270ep-7f, 0x1.c6ae72p-5f, 0x1.ebfbe2p-3f, 0x1.62e432p-1f, 1.0f};
  static constexpr float BIAS = 127.0f;
  static constexpr float ROUND = 0x1.8p23f + BIAS;  // x + ROUND has round(x) + BIAS in its low bits
  static constexpr int FRACTION_BITS = 23;
};

template <>
struct Exp2<double> {
  static constexpr double COEFFICIENTS[] = {
      0x1.c0638527edf34p-32, 0x1.e605f979c7a5dp-28, 0x1.b54167a0b9061p-24, 0x1.62bfd49ed0adfp-20,
      0x1.ffcbee3b0af8cp-17, 0x1.4309130961163p-13, 0x1.5d87fe7bbbe07p-10, 0x1.3b2ab6fba1e1cp-7,
      0x1.c6b08d7048f31p-5,  0x1.ebfbdff82c598p-3,  0x1.62e42fefa39f3p-1,  1.0};
  static constexpr double BIAS = 1023.0;
  static constexpr double ROUND = 0x1.8p52 + BIAS;
  static constexpr int FRACTION_BITS = 52;
};

// 2^(x * scale) for x * scale <= 0: about 1 ulp; exactly 1 at 0; 0 where the result would be
// denormal and for -inf; NaN for NaN. `lowest` is -BIAS / scale.
template <typename C>
inline Vec<C> exp2_scaled(Vec<C> x, C scale, C lowest) {
  using E = Exp2<C>;
  x = maximum<C>(splat<C>(lowest), x);  // keeps NaN
  const Vec<C> shifted = x * scale + E::ROUND;
  const Vec<C> fraction = x * scale - (shifted - E::ROUND);
  Vec<C> result = splat<C>(E::COEFFICIENTS[0]);
#pragma GCC unroll 16
  for (unsigned i = 1; i < sizeof(E::COEFFICIENTS) / sizeof(C); ++i)
    result = result * fraction + E::COEFFICIENTS[i];
  const typename Simd<C>::IntVec power = reinterpret_cast<typename Simd<C>::IntVec>(shifted)
                                         << E::FRACTION_BITS;
  return result * reinterpret_cast<Vec<C>>(power);
}

}  // namespace
}  // namespace attention
