// Before the Hopper attention kernel: K and V as tiles of scaled fp16 parts, laid out as the tensor
// cores read them.
//
// Algorithm
//   A block takes one tile, BLOCK_N keys of K or of V of one (batch, kv head). It finds the largest
//   magnitude, scales the tile by a power of two that brings it near 2^14, and writes each element
//   as PARTS halves, x = hi + lo. Elements past head_dim and past the last key are zero. K of int8 and of gqa_attn's
//   16-bit types stays as it is.
//
// Shapes and dtypes
//   k and v [batch, seqlen_k, num_kv_heads, HEAD_DIM] of T, any strides.
//   tiles [batch * num_kv_heads][kv_tiles][K, V][PARTS][SLABS][BLOCK_N][64] of fp16; K of int8 [128] in place of [64].
//   scales [batch * num_kv_heads][kv_tiles] of TileScale.
//
// Layout
//   A slab is 64 (int8: 128) head_dim elements wide: rows of 128 bytes, the 16-byte chunk c of row r at place
//   c ^ (r % 8). The attention kernel copies a tile into shared memory as it is.
//
// Requires
//   sm_90. Rows that are contiguous and aligned are read four elements at a time.
//
// Launch
//   a block for each tile, THREADS threads.
//
// Numerics
//   Two parts hold 22 bits of an element, down to 2^-39 of the tile's largest. A tile cannot be split
//   where an element is not finite, where a row's largest magnitude is more than 2^16 below the
//   tile's, or where that is beyond 2^+-40: its scale is 0, and the rows that would read it are
//   left to the portable kernel.
//
// Work
//   Memory: K and V read once, as many bytes written (half as many for 16-bit inputs: one part).
#pragma once

#include "cuda/attention/portable.cuh"
#include "cuda/attention/short.cuh"

namespace attention {

template <typename T>
constexpr bool IS_INT8 = false;
template <>
constexpr bool IS_INT8<int8_t> = true;
template <typename T>
constexpr bool IS_INTEGER = IS_INT8<T>;
template <>
constexpr bool IS_INTEGER<uint8_t> = true;

// How the Hopper kernel cuts up a problem. SCALED: fp8_attn, whose output is fp32 whatever its inputs are. FAST: as
// near as half precision is.
template <typename T, bool SCALED, bool FAST, int HEAD_DIM>
struct HopperTile {
  static constexpr int PARTS = sizeof(T) == 4 && !FAST ? 2 : 1;  // fp16 parts of an element of q, k and v
  static constexpr int P_PARTS = FAST ? 1 : 2;                   // and of a weight
  static constexpr bool PROMOTE = !FAST && (SCALED || PARTS == 2);  // O is summed outside the tensor cores
  // The tensor cores multiply q and k as they are.
  static constexpr bool IS_DIRECT = !SCALED && sizeof(T) == 2;
  // As fp16, whatever the value, if it is finite.
  static constexpr bool IS_EXACT = sizeof(T) <= 2 && !IS_BFLOAT16<T>;
  static constexpr int SCORE_BYTES = IS_INT8<T> ? 1 : 2;  // of an element of q and k as the tensor cores read it
  static constexpr int SCORE_STEPS = (HEAD_DIM * SCORE_BYTES + 31) / 32;  // products in a row for one S
  // S is summed in two where the tensor cores would cut off the most and there are the registers: its first 8
  // steps, and the rest.
  static constexpr int STEPS_IN_SUM = PARTS == 2 && SCORE_STEPS > 8 ? 8 : SCORE_STEPS;
  // What the tensor cores cut off brings |S| nearer to zero, by this share in the mean: simulated with normal q and k,
  // the same within a tenth of it at every head_dim that was tried. Integers of fp8_attn lose nothing.
  static constexpr double CUT_OFF = PARTS == 2 && !SCALED ? (0.3 + 0.275 * STEPS_IN_SUM) / 16777216 : 0;
  static constexpr int SLABS = (HEAD_DIM + 63) / 64;      // of v
  static constexpr int PADDED = SLABS * 64;
  static constexpr int ROW_BYTES = 128;  // of a slab
  static constexpr int SCORE_SLABS = (HEAD_DIM * SCORE_BYTES + ROW_BYTES - 1) / ROW_BYTES;  // of q and k
  static constexpr int BLOCK_M = 128;
  static constexpr int BLOCK_N = PADDED <= 64 ? 128 : (PADDED <= 128 ? 64 : 32) * (PROMOTE ? 1 : 2);
  static constexpr int SLAB_BYTES = BLOCK_N * ROW_BYTES;
  static constexpr int K_PART_BYTES = SCORE_SLABS * SLAB_BYTES;
  static constexpr int V_PART_BYTES = SLABS * SLAB_BYTES;
  static constexpr int K_BYTES = PARTS * K_PART_BYTES;
  static constexpr int V_BYTES = PARTS * V_PART_BYTES;  // at least K's

  // Where a tile of K or V begins in the workspace.
  __host__ __device__ __forceinline__ static int64_t offset(int64_t tile, bool is_v) {
    return K_BYTES == V_BYTES ? (tile * 2 + is_v) * V_BYTES : tile * (K_BYTES + V_BYTES) + (is_v ? K_BYTES : 0);
  }
};

// The powers of two a tile's K and V were multiplied by, and their inverses; all of K's or V's are
// zero where it could not be split.
struct alignas(16) TileScale {
  float k;
  float k_inverse;
  float v;
  float v_inverse;

  __device__ __forceinline__ bool is_good() const { return k != 0 && v != 0; }
};

constexpr int SPLIT_TARGET = 14;     // the exponent of the largest magnitude after scaling
constexpr int SPLIT_LIMIT = 40;      // of its exponent before
constexpr int SPLIT_ROW_RANGE = 16;  // how far a row's largest may lie below

// A power of two for a largest magnitude given as the bits of a float, or 0 where there is none.
// What fp16 holds is taken as it is. Where tiles are added up in the tensor cores (PROMOTE is false), the scale
// is one for usual magnitudes, so that neighbouring tiles agree: bfloat16 keeps all its bits there.
template <typename T, bool PROMOTE>
__device__ __forceinline__ float split_scale(uint32_t largest) {
  if (largest == 0) return 1.0f;
  const int exponent = static_cast<int>(largest >> 23) - 127;
  if constexpr (sizeof(T) <= 2 && !IS_BFLOAT16<T>) return exponent < 16 ? 1.0f : 0.0f;
  if (!PROMOTE && exponent >= -6 && exponent <= SPLIT_TARGET) return 1.0f;
  if (exponent < -SPLIT_LIMIT || exponent > SPLIT_LIMIT) return 0.0f;
  return __uint_as_float(static_cast<uint32_t>(127 + SPLIT_TARGET - exponent) << 23);
}
__device__ __forceinline__ float inverse_power(float power) {
  return power == 0 ? 0.0f : __uint_as_float((254u << 23) - __float_as_uint(power));
}
__device__ __forceinline__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// What floats_to_halves() rounded away, as another pair.
__device__ __forceinline__ uint32_t pack_remainders(float x, float y, uint32_t packed) {
  return ptx::floats_to_halves(x - ptx::half_to_float(static_cast<uint16_t>(packed)),
                     y - ptx::half_to_float(static_cast<uint16_t>(packed >> 16)));
}

struct SplitArguments {
  const void* k;
  const void* v;
  int64_t k_stride[4];
  int64_t v_stride[4];
  bool k_vectors;
  bool v_vectors;
  int seqlen_k;
  int num_kv_heads;
  int kv_tiles;
  unsigned char* tiles;
  TileScale* scales;
  int* next_job;
};

template <typename T, bool SCALED, bool FAST, int HEAD_DIM>
struct SplitLaunch {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  static constexpr int WIDTH = 8;  // elements a thread moves as one unit: 16 bytes of a part
  static constexpr int UNITS_PER_ROW = TILE::PADDED / WIDTH;
  static constexpr int STEPS = 4;  // units a thread moves
  static constexpr int THREADS = TILE::BLOCK_N * UNITS_PER_ROW / STEPS;
  static_assert(THREADS % 32 == 0 && TILE::BLOCK_N % 32 == 0, "whole warps move, and look at, whole rows");
};

template <typename T, bool SCALED, bool FAST, int HEAD_DIM>
__global__ void __launch_bounds__(SplitLaunch<T, SCALED, FAST, HEAD_DIM>::THREADS) split_kernel(const __grid_constant__ SplitArguments arguments) {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  using Launch = SplitLaunch<T, SCALED, FAST, HEAD_DIM>;
  constexpr int THREADS = Launch::THREADS;
  constexpr int BLOCK_N = TILE::BLOCK_N;
  constexpr int WIDTH = Launch::WIDTH;
  constexpr int UNITS_PER_ROW = Launch::UNITS_PER_ROW;
  constexpr int STEPS = Launch::STEPS;
  __shared__ uint32_t row_largest_smem[BLOCK_N];

  if constexpr (STARTS_EARLY) ptx::wait_for_previous_kernel();  // the next kernel's Q must be there as well
  ptx::let_next_kernel_start();
  const bool is_v = blockIdx.x % 2;
  const int tile = blockIdx.x / 2 % arguments.kv_tiles;
  const int head = blockIdx.x / 2 / arguments.kv_tiles;  // batch * num_kv_heads + kv_head
  const int64_t* stride = is_v ? arguments.v_stride : arguments.k_stride;
  const T* gmem = static_cast<const T*>(is_v ? arguments.v : arguments.k) +
                  head / arguments.num_kv_heads * stride[0] + head % arguments.num_kv_heads * stride[2];
  const bool vectors = is_v ? arguments.v_vectors : arguments.k_vectors;
  const int keys_left = arguments.seqlen_k - tile * BLOCK_N;
  for (int row = threadIdx.x; row < BLOCK_N; row += THREADS) row_largest_smem[row] = 0;

  Vec4<T> x[STEPS][WIDTH / CHUNK];
#pragma unroll
  for (int i = 0; i < STEPS; ++i) {
    const int unit = threadIdx.x + i * THREADS;
    const int row = unit / UNITS_PER_ROW;
    const int dim = unit % UNITS_PER_ROW * WIDTH;
    const T* from = gmem + (static_cast<int64_t>(tile) * BLOCK_N + row) * stride[1] + dim * stride[3];
#pragma unroll
    for (int part = 0; part < WIDTH; part += CHUNK) {
      Vec4<T> loaded = {};
      const int left = row < keys_left ? HEAD_DIM - dim - part : 0;
      if (vectors) {
        if (left >= CHUNK) loaded = *reinterpret_cast<const Vec4<T>*>(from + part);
      } else {
#pragma unroll
        for (int e = 0; e < CHUNK; ++e)
          if (e < left) loaded.x[e] = from[(part + e) * stride[3]];
      }
      x[i][part / CHUNK] = loaded;
    }
  }
  const auto element = [&](int i, int e) { return to_accumulator(x[i][e / CHUNK].x[e % CHUNK]); };
  float scale = 1.0f;
  if constexpr (!IS_INTEGER<T>) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      uint32_t largest = 0;  // of the bits: a NaN is larger than infinity
#pragma unroll
      for (int e = 0; e < WIDTH; ++e) largest = max(largest, magnitude_bits(element(i, e)));
#pragma unroll
      for (int offset = 1; offset < 8; offset *= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
      if (threadIdx.x % 8 == 0) atomicMax(&row_largest_smem[(threadIdx.x + i * THREADS) / UNITS_PER_ROW], largest);
    }
    __syncthreads();
    uint32_t largest = 0, smallest_row = 0x7f800000u;
#pragma unroll
    for (int row = 0; row < BLOCK_N; row += 32) {
      const uint32_t here = row_largest_smem[row + threadIdx.x % 32];
      largest = max(largest, here);
      if (here != 0) smallest_row = min(smallest_row, here);
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    smallest_row = __reduce_min_sync(0xffffffffu, smallest_row);
    const bool is_direct = TILE::IS_DIRECT && !is_v;
    scale = is_direct ? (largest < 0x7f800000u ? 1.0f : 0.0f) : split_scale<T, TILE::PROMOTE>(largest);
    // fp16 is taken as it is, whatever its range.
    if (!is_direct && (sizeof(T) == 4 || IS_BFLOAT16<T>) && (smallest_row >> 23) + SPLIT_ROW_RANGE < (largest >> 23)) scale = 0;
  }
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) *arguments.next_job = 0;
    TileScale& out = arguments.scales[static_cast<int64_t>(head) * arguments.kv_tiles + tile];
    *reinterpret_cast<float2*>(is_v ? &out.v : &out.k) = make_float2(scale, inverse_power(scale));
  }
  if (scale == 0) return;

  unsigned char* to = arguments.tiles + TILE::offset(blockIdx.x / 2, is_v);
#pragma unroll
  for (int i = 0; i < STEPS; ++i) {
    const int unit = threadIdx.x + i * THREADS;
    const int row = unit / UNITS_PER_ROW;
    const int chunk = unit % UNITS_PER_ROW;
    if (IS_INT8<T> && !is_v) {  // as it is, 16 elements a chunk
      unsigned char* place = to + chunk / 16 * TILE::SLAB_BYTES + row * TILE::ROW_BYTES +
                             (chunk % 16 / 2 ^ row % 8) * 16 + chunk % 2 * WIDTH;
      uint2 bytes;
      memcpy(&bytes, x[i], sizeof(bytes));
      *reinterpret_cast<uint2*>(place) = bytes;
      continue;
    }
    unsigned char* place =
        to + chunk / 8 * TILE::SLAB_BYTES + row * TILE::ROW_BYTES + (chunk % 8 ^ row % 8) * 16;
    if constexpr (TILE::IS_DIRECT) {
      if (!is_v) {
        uint4 bytes;
        memcpy(&bytes, x[i], sizeof(bytes));
        *reinterpret_cast<uint4*>(place) = bytes;
        continue;
      }
    }
    uint32_t high[WIDTH / 2], low[WIDTH / 2];
#pragma unroll
    for (int e = 0; e < WIDTH; e += 2) {
      const float even = element(i, e) * scale, odd = element(i, e + 1) * scale;
      high[e / 2] = ptx::floats_to_halves(even, odd);
      if (TILE::PARTS == 2) low[e / 2] = pack_remainders(even, odd, high[e / 2]);
    }
    *reinterpret_cast<uint4*>(place) = make_uint4(high[0], high[1], high[2], high[3]);
    if (TILE::PARTS == 2)
      *reinterpret_cast<uint4*>(place + TILE::V_PART_BYTES) = make_uint4(low[0], low[1], low[2], low[3]);
  }
}

}  // namespace attention
