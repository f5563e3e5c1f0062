// Causal grouped-query attention forward for short sequences: one launch, every key in one
// tile, tensor cores at fp32 accuracy. Made for latency.
//
// Algorithm
//   A block owns 16 packed query rows of one (batch, kv head) (see portable.cuh for the
//   packing) and all of their keys. Each warp takes 8 keys: S = Q K^T for its keys, then the
//   row maxima meet in shared memory, then O += P V for its keys, then the partial outputs
//   meet in shared memory and are added in a fixed order. Every operand is split into bfloat16
//   parts, x = x0 + x1 + x2, which is exact (3 * 8 bits), and the products of parts i and j with
//   i + j <= 2 are computed. Types of at most 8 significant bits are one part, Half is two.
//
// Shapes and dtypes
//   As in portable.cuh, HEAD_DIM a multiple of 4 up to 64, T any type that computes in float.
//
// Layout (shared memory, float; warps is the number of warps launched)
//   q [16][Q_WORDS] (its parts, as pairs), k [8 * warps][ROW_STRIDE] or partial outputs
//   [warps][16][PARTIAL_STRIDE], v [8 * warps][VALUE_STRIDE], row maxima and sums [16][MAX_WARPS].
//   The strides keep fragment loads free of bank conflicts.
//
// Requires
//   sm_80 or newer (bfloat16 mma.sync, cp.async). Contiguous rows aligned to four elements, offsets
//   within a batch below 2^30 elements, at most 8 * MAX_WARPS keys.
//
// Launch
//   grid (row blocks, kv heads, batch), a warp for every 8 keys, shared memory by warps.
//
// Pipeline
//   load all | barrier | S, row maxima | barrier | P, O | barrier | sum, normalise, store
//
// Numerics
//   Products of one magnitude share an accumulator, small ones apart from large ones; those
//   dropped are below 2^-24 of the whole. Scales of 8-bit types multiply S and the output, those
//   of other types each element, kept out of the denormal range. An infinity or a NaN becomes
//   NaN when split. In a value it would reach rows that do not see its key, through a weight of
//   zero: such values are replaced by zero, and rows that do see one, like all rows that come out
//   not finite, are computed again the plain way over their visible keys (recompute()).
//   Fixed order throughout: bitwise the same on repeat and inside any batch.
//
// Work
//   As in portable.cuh; up to six tensor-core products for each one.
//
// Versus
//   portable.cuh with a tile for short sequences: gqa_attn's default inputs 3.77 to 2.69 us a
//   launch (graph replay, one H200, 2026-11-30); the steps between are in gqa_attn/README.md.
//
// References
//   PTX ISA, mma.m16n8k16 and m16n8k8 fragment layouts; cp.async.
#pragma once

#include "cuda/attention/bfloat16_parts.cuh"
#include "cuda/attention/portable.cuh"
#include "cuda/ptx/copy_async.cuh"
#include "cuda/ptx/mma.cuh"

namespace attention {

constexpr int SHORT_MAX_HEAD_DIM = 64;

// 1 / x for x in the normal range, correct to the last bit or the one before.
__device__ __forceinline__ float reciprocal(float x) {
  const float r = ptx::reciprocal_approximate(x);
  return r * (2.0f - x * r);
}

// A launch, with everything but the batch offset in 32 bits: 64-bit address arithmetic would
// take longer than the tensor cores do.
struct ShortArguments {
  const void* q;
  const void* k;
  const void* v;
  int64_t q_batch_stride;
  int64_t k_batch_stride;
  int64_t v_batch_stride;
  int q_time_stride;
  int q_head_stride;
  int k_time_stride;
  int k_head_stride;
  int v_time_stride;
  int v_head_stride;
  int seqlen_q;
  int seqlen_k;
  int first_kv_head;
  int first_batch;
  void* out;
  int num_heads;
  float exponent_scale;
  const float* q_scale;
  const float* k_scale;
  const float* v_scale;
  int q_scale_stride;
  int k_scale_stride;
  int v_scale_stride;
};

template <int HEAD_DIM, int PARTS>
struct ShortMemory {
  static constexpr int ROWS = 16;
  static constexpr int KEYS_PER_WARP = 8;
  static constexpr int MAX_WARPS = HEAD_DIM <= 32 ? 16 : 12;
  static constexpr int PADDED = round_up(HEAD_DIM, 16);
  static constexpr int Q_WORDS = PARTS * PADDED / 2 + (PARTS * PADDED % 32 == 0 ? 8 : 0);
  static constexpr int ROW_STRIDE = PADDED % 32 == 16 ? PADDED : PADDED + 16;
  static constexpr int VALUE_STRIDE = PADDED + 4;
  static constexpr int PARTIAL_STRIDE = PADDED + 8;
  // Keys and, once S is done, partial outputs; 16 mod 32, so that two warps' parts can be read
  // side by side.
  static constexpr int SHARED_PER_WARP = round_up(larger(KEYS_PER_WARP * ROW_STRIDE, ROWS * PARTIAL_STRIDE), 32) + 16;

  static constexpr int bytes(int warps) {
    return 4 * (ROWS * Q_WORDS + warps * (SHARED_PER_WARP + KEYS_PER_WARP * VALUE_STRIDE) + 2 * ROWS * MAX_WARPS + 4);
  }
};

// What scales multiply: elements of q, k and v before, and S and the output after.
struct Scales {
  float q = 1;
  float k = 1;
  float v = 1;
  float s_after = 1;
  float v_after = 1;
  bool are_usual = true;  // nothing overflows that the reference would not let overflow

  // Elements of 8-bit types stay whole numbers of few bits; their scales come after. Others are
  // scaled first, by 2^64 too much where the product could be denormal: the parts of a denormal
  // number do not hold it.
  template <bool EACH_ELEMENT>
  __device__ __forceinline__ void set(float q_scale, float k_scale, float v_scale) {
    if constexpr (EACH_ELEMENT) {
      q = q_scale * range(q_scale), k = k_scale * range(k_scale), v = v_scale * range(v_scale);
      s_after = 1.0f / (range(q_scale) * range(k_scale));
      v_after = 1.0f / range(v_scale);
    } else {
      s_after = static_cast<float>(static_cast<double>(q_scale) * k_scale);
      v_after = v_scale;
      constexpr float LARGE = 1.0e36f;
      are_usual = fabsf(q_scale) < LARGE && fabsf(k_scale) < LARGE && fabsf(v_scale) < LARGE;
    }
  }

 private:
  __device__ __forceinline__ static float range(float scale) { return fabsf(scale) < 0x1p-62f ? 0x1p+62f : 1.0f; }
};

template <bool SCALED, typename T>
__device__ __forceinline__ float4 convert(const Vec4<T>& loaded, float scale) {
  float x[CHUNK];
#pragma unroll
  for (int e = 0; e < CHUNK; ++e)
    x[e] = SCALED && sizeof(T) > 1 ? to_accumulator(loaded.x[e]) * scale : to_accumulator(loaded.x[e]);
  return make_float4(x[0], x[1], x[2], x[3]);
}

// One output element, the plain way, over the visible keys alone.
template <bool SCALED, int HEAD_DIM, typename T>
__device__ __forceinline__ float recompute(const T* q, const T* k, const T* v, int kv_head, int dim, int visible,
                                           const ShortArguments& arguments) {
  float q_scale = 1, k_scale = 1, v_scale = 1;
  if (SCALED) {
    q_scale = arguments.q_scale[kv_head * arguments.q_scale_stride];
    k_scale = arguments.k_scale[kv_head * arguments.k_scale_stride];
    v_scale = arguments.v_scale[kv_head * arguments.v_scale_stride];
  }
  float max = minus_infinity(0.0f), sum = 0, value = 0;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const float shift = max == minus_infinity(0.0f) ? 0.0f : max;
#pragma unroll 1
    for (int j = 0; j < visible; ++j) {
      float s = 0;
#pragma unroll 1
      for (int d = 0; d < HEAD_DIM; ++d) {
        float a = to_accumulator(q[d]), b = to_accumulator(k[j * arguments.k_time_stride + d]);
        if (SCALED) a *= q_scale, b *= k_scale;
        s += a * b;
      }
      if (pass == 0) {
        max = s > max ? s : max;
      } else {
        const float p = exponential(s - shift, arguments.exponent_scale);
        float x = to_accumulator(v[j * arguments.v_time_stride + dim]);
        if (SCALED) x *= v_scale;
        sum += p;
        value += p * x;
      }
    }
  }
  return value / sum;
}

template <typename T, typename OUT, bool SCALED, int HEAD_DIM, int GROUP_SIZE>
__global__ void __launch_bounds__(ShortMemory<HEAD_DIM, 1>::MAX_WARPS * 32, 1)
    short_attention_kernel(const __grid_constant__ ShortArguments arguments) {
  constexpr int PARTS = parts_of<T, SCALED>();
  using Smem = ShortMemory<HEAD_DIM, PARTS>;
  static_assert(HEAD_DIM % CHUNK == 0, "rows are moved in whole chunks");
  static_assert(!SCALED || GROUP_SIZE == 1, "scales are one per head, and heads of a group would differ");
  constexpr int PADDED = Smem::PADDED;
  constexpr int MAX_WARPS = Smem::MAX_WARPS;
  constexpr int CHUNKS = HEAD_DIM / CHUNK;
  constexpr int N_TILES = (HEAD_DIM + 7) / 8;

  const int warps = blockDim.x / 32;
  extern __shared__ __align__(16) float smem[];
  uint32_t* const q_smem = reinterpret_cast<uint32_t*>(smem);
  float* const k_smem = smem + Smem::ROWS * Smem::Q_WORDS;
  float* const partial_smem = k_smem;
  float* const v_smem = k_smem + warps * Smem::SHARED_PER_WARP;
  float* const max_smem = v_smem + warps * (Smem::KEYS_PER_WARP * Smem::VALUE_STRIDE);
  float* const sum_smem = max_smem + Smem::ROWS * MAX_WARPS;
  int* const bad_key_smem = reinterpret_cast<int*>(sum_smem + Smem::ROWS * MAX_WARPS);  // the first with a value that is not finite

  const int warp = threadIdx.x / 32;
  const int quad = threadIdx.x % 32 / 4;  // the fragment's row (A, D) or column (B)
  const int pair = threadIdx.x % 4;
  const int kv_head = arguments.first_kv_head + static_cast<int>(blockIdx.y);
  const int64_t batch = arguments.first_batch + static_cast<int>(blockIdx.z);

  // Longest rows first.
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * 16;
  const int rows_left = arguments.seqlen_q * GROUP_SIZE - first_row;
  const int rows_here = rows_left < 16 ? rows_left : 16;
  const int last_time = static_cast<unsigned>(first_row + rows_here - 1) / GROUP_SIZE;
  const int num_keys = last_time + 1 < arguments.seqlen_k ? last_time + 1 : arguments.seqlen_k;
  const int key_tiles = (num_keys + 7) / 8;

  const T* q_gmem = static_cast<const T*>(arguments.q) + batch * arguments.q_batch_stride +
                    kv_head * GROUP_SIZE * arguments.q_head_stride;
  const T* k_gmem = static_cast<const T*>(arguments.k) + batch * arguments.k_batch_stride +
                    kv_head * arguments.k_head_stride;
  const T* v_gmem = static_cast<const T*>(arguments.v) + batch * arguments.v_batch_stride +
                    kv_head * arguments.v_head_stride;
  const auto q_row = [&](int row) {
    const unsigned packed = first_row + row;
    return q_gmem + packed / GROUP_SIZE * arguments.q_time_stride + packed % GROUP_SIZE * arguments.q_head_stride;
  };
  Scales scales;

  // A thread keeps one column of CHUNK elements and walks down the rows. Keys past the end of
  // the last tile are zero: they meet a weight of zero, and must be finite.
  const int load_row = threadIdx.x / CHUNKS;
  const int load_dim = threadIdx.x % CHUNKS * CHUNK;
  const int rows_per_step = blockDim.x / CHUNKS;
  const bool loads = 32 % CHUNKS == 0 || load_row < rows_per_step;
  // A warp for every 8 keys: so many steps cover them all.
  constexpr int STEPS = (Smem::KEYS_PER_WARP * CHUNKS + 31) / 32 + (32 % CHUNKS == 0 ? 0 : 1);
  constexpr bool COPIES = sizeof(T) == 4 && !SCALED;
  Vec4<T> q_part = {}, k_part[COPIES ? 1 : STEPS], v_part[COPIES ? 1 : STEPS];
  for (int i = threadIdx.x; i < Smem::ROWS * MAX_WARPS; i += blockDim.x) max_smem[i] = minus_infinity(0.0f);
  ptx::wait_for_previous_kernel();
  if (loads && load_row < rows_here) q_part = *reinterpret_cast<const Vec4<T>*>(q_row(load_row) + load_dim);
  if constexpr (COPIES) {
#pragma unroll 1
    for (int key = loads ? load_row : num_keys + 8; key < key_tiles * 8; key += rows_per_step) {
      ptx::copy_async(k_smem + key * Smem::ROW_STRIDE + load_dim, k_gmem + key * arguments.k_time_stride + load_dim,
                      key < num_keys);
      ptx::copy_async(v_smem + key * Smem::VALUE_STRIDE + load_dim, v_gmem + key * arguments.v_time_stride + load_dim,
                      key < num_keys);
    }
  } else {
    // Every load is issued before the first is used.
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int key = load_row + i * rows_per_step;
      k_part[i] = v_part[i] = {};
      if (key < num_keys) {
        k_part[i] = *reinterpret_cast<const Vec4<T>*>(k_gmem + key * arguments.k_time_stride + load_dim);
        v_part[i] = *reinterpret_cast<const Vec4<T>*>(v_gmem + key * arguments.v_time_stride + load_dim);
      }
    }
    if constexpr (SCALED) {
      scales.template set<(sizeof(T) > 1)>(arguments.q_scale[kv_head * arguments.q_scale_stride],
                                           arguments.k_scale[kv_head * arguments.k_scale_stride],
                                           arguments.v_scale[kv_head * arguments.v_scale_stride]);
    }
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int key = load_row + i * rows_per_step;
      if (loads && key < key_tiles * 8) {
        *reinterpret_cast<float4*>(k_smem + key * Smem::ROW_STRIDE + load_dim) = convert<SCALED>(k_part[i], scales.k);
        *reinterpret_cast<float4*>(v_smem + key * Smem::VALUE_STRIDE + load_dim) = convert<SCALED>(v_part[i], scales.v);
      }
    }
  }
  if (threadIdx.x == 0) *bad_key_smem = scales.are_usual ? Smem::KEYS_PER_WARP * MAX_WARPS : 0;
  if constexpr (PADDED != HEAD_DIM) {  // head_dim's padding is zero in q and k
    for (int i = threadIdx.x; i < (Smem::ROWS * PARTS + key_tiles * 8) * (PADDED - HEAD_DIM); i += blockDim.x) {
      const int row = i / (PADDED - HEAD_DIM), dim = HEAD_DIM + i % (PADDED - HEAD_DIM);
      if (row < Smem::ROWS * PARTS)
        q_smem[row / PARTS * Smem::Q_WORDS + row % PARTS * (PADDED / 2) + dim / 2] = 0;
      else
        k_smem[(row - Smem::ROWS * PARTS) * Smem::ROW_STRIDE + dim] = 0;
    }
  }
  if (loads && load_row < rows_here) {
    const float4 x = convert<SCALED>(q_part, scales.q);
    uint32_t first[PARTS], second[PARTS];
    split_pair(x.x, x.y, first);
    split_pair(x.z, x.w, second);
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
      *reinterpret_cast<uint2*>(q_smem + load_row * Smem::Q_WORDS + part * (PADDED / 2) + load_dim / 2) =
          make_uint2(first[part], second[part]);
  }
  ptx::wait_for_copies();
  __syncthreads();

  // S for rows quad and quad + 8, keys 8 * warp + 2 * pair and the next. The lane's four
  // neighbouring head_dim elements serve two k-steps: q and k are permuted alike.
  const bool active = warp < key_tiles;
  float s[4];
  uint32_t v[N_TILES][PARTS];
  float row_max[2] = {minus_infinity(0.0f), minus_infinity(0.0f)};
  if (active) {
    SplitAccumulator<smaller(2 * PARTS - 1, 3)> scores;
#pragma unroll
    for (int dim = 0; dim < PADDED; dim += 16) {
      uint2 upper[PARTS], lower[PARTS];
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        const uint32_t* q = q_smem + quad * Smem::Q_WORDS + part * (PADDED / 2) + dim / 2 + pair * 2;
        upper[part] = *reinterpret_cast<const uint2*>(q);
        lower[part] = *reinterpret_cast<const uint2*>(q + 8 * Smem::Q_WORDS);
      }
      const float4 key =
          *reinterpret_cast<const float4*>(k_smem + (warp * 8 + quad) * Smem::ROW_STRIDE + dim + pair * 4);
      uint32_t first[PARTS], second[PARTS];
      split_pair(key.x, key.y, first);
      split_pair(key.z, key.w, second);
#pragma unroll
      for (int i = PARTS - 1; i >= 0; --i)
#pragma unroll
        for (int j = smaller(2 - i, PARTS - 1); j >= 0; --j)
          ptx::mma_k16(scores.level[i + j], upper[i], lower[i], make_uint2(first[j], second[j]));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int time = static_cast<unsigned>(first_row + quad + half * 8) / GROUP_SIZE;
      const int visible = time + 1 < num_keys ? time + 1 : num_keys;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = warp * 8 + pair * 2 + e;
        float value = scores.sum(half * 2 + e);
        value += value - value;  // an infinity becomes NaN: recompute() says what it was
        if (SCALED) value *= scales.s_after;
        if (key >= visible) value = minus_infinity(0.0f);
        s[half * 2 + e] = value;
        row_max[half] = value > row_max[half] ? value : row_max[half];
      }
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float other = __shfl_xor_sync(0xffffffffu, row_max[half], offset);
        row_max[half] = other > row_max[half] ? other : row_max[half];
      }
    if (pair < 2) max_smem[(quad + pair * 8) * MAX_WARPS + warp] = pair == 0 ? row_max[0] : row_max[1];
    // Values are split while other warps finish their scores. Key 2t is k-step 2t of its tile:
    // what S leaves in a lane is what P V needs.
    const float* values = v_smem + (warp * 8 + pair * 2) * Smem::VALUE_STRIDE + quad;
    float left = 0;
#pragma unroll
    for (int n = 0; n < N_TILES; ++n) left += split_pair(values[n * 8], values[n * 8 + Smem::VALUE_STRIDE], v[n]);
    if (__any_sync(0xffffffffu, left != left)) {
#pragma unroll
      for (int n = 0; n < N_TILES; ++n) {
        float even = values[n * 8], odd = values[n * 8 + Smem::VALUE_STRIDE];
        // Columns past head_dim hold whatever shared memory held.
        const bool counts = n * 8 + quad < HEAD_DIM;
        if (even - even != 0) {
          if (counts) atomicMin(bad_key_smem, warp * 8 + pair * 2);
          even = 0;
        }
        if (odd - odd != 0) {
          if (counts) atomicMin(bad_key_smem, warp * 8 + pair * 2 + 1);
          odd = 0;
        }
        split_pair(even, odd, v[n]);
      }
    }
  }
  __syncthreads();

  ptx::let_next_kernel_start();
  if (active) {
    float sum[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < MAX_WARPS / 4; ++i) {
        const float other = max_smem[(quad + half * 8) * MAX_WARPS + pair * (MAX_WARPS / 4) + i];
        row_max[half] = other > row_max[half] ? other : row_max[half];
      }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float other = __shfl_xor_sync(0xffffffffu, row_max[half], offset);
        row_max[half] = other > row_max[half] ? other : row_max[half];
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // While a row has seen nothing above -inf its weights are zero, not exp(-inf + inf).
      const float shift = row_max[half] == minus_infinity(0.0f) ? 0.0f : row_max[half];
#pragma unroll
      for (int e = 0; e < 2; ++e) s[half * 2 + e] = exponential(s[half * 2 + e] - shift, arguments.exponent_scale);
      sum[half] = s[half * 2] + s[half * 2 + 1];
    }
    uint32_t upper[3], lower[3];
    split_pair(s[0], s[1], upper);
    split_pair(s[2], s[3], lower);
    float* partial = partial_smem + warp * Smem::SHARED_PER_WARP + quad * Smem::PARTIAL_STRIDE + pair * 2;
#pragma unroll
    for (int n = 0; n < N_TILES; ++n) {
      SplitAccumulator<3> o;
#pragma unroll
      for (int i = 2; i >= 0; --i)
#pragma unroll
        for (int j = smaller(2 - i, PARTS - 1); j >= 0; --j) ptx::mma_k8(o.level[i + j], upper[i], lower[i], v[n][j]);
      *reinterpret_cast<float2*>(partial + n * 8) = make_float2(o.sum(0), o.sum(1));
      *reinterpret_cast<float2*>(partial + 8 * Smem::PARTIAL_STRIDE + n * 8) = make_float2(o.sum(2), o.sum(3));
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2)
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], offset);
    if (pair < 2) sum_smem[(quad + pair * 8) * MAX_WARPS + warp] = pair == 0 ? sum[0] : sum[1];
  }
  __syncthreads();

  // Two threads share an output chunk: one adds the even warps' parts, one the odd.
  const int share = threadIdx.x % 2;
#pragma unroll 1
  for (int index = threadIdx.x / 2; index < Smem::ROWS * CHUNKS; index += blockDim.x / 2) {
    const int row = index / CHUNKS;
    const int dim = index % CHUNKS * CHUNK;
    float sum = 0;
    float value[CHUNK] = {};
#pragma unroll 4
    for (int w = share; w < key_tiles; w += 2) {
      const float4 part =
          *reinterpret_cast<const float4*>(partial_smem + w * Smem::SHARED_PER_WARP + row * Smem::PARTIAL_STRIDE + dim);
      value[0] += part.x, value[1] += part.y, value[2] += part.z, value[3] += part.w;
      sum += sum_smem[row * MAX_WARPS + w];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
#pragma unroll
    for (int e = 0; e < CHUNK; ++e) value[e] += __shfl_xor_sync(0xffffffffu, value[e], 1);
    if (share != 0 || row >= rows_here) continue;
    // No keys at all: the empty sum is zero, not 0 / 0.
    float normalise = num_keys == 0 ? 0.0f : reciprocal(sum);
    const unsigned packed = first_row + row;
    const int time = packed / GROUP_SIZE;
    const int head = kv_head * GROUP_SIZE + packed % GROUP_SIZE;
    OUT* out = static_cast<OUT*>(arguments.out) +
               ((batch * arguments.seqlen_q + time) * arguments.num_heads + head) * HEAD_DIM + dim;
    Vec4<OUT> result;
    const int visible = time + 1 < num_keys ? time + 1 : num_keys;
    bool is_good = visible <= *bad_key_smem;
#pragma unroll
    for (int e = 0; e < CHUNK; ++e) {
      value[e] *= normalise;
      if (SCALED) value[e] *= scales.v_after;
      is_good = is_good && value[e] - value[e] == 0;
      result.x[e] = from_accumulator<OUT>(value[e]);
    }
    if (is_good) {
      store_vector(out, result);
    } else {
#pragma unroll 1
      for (int e = 0; e < CHUNK; ++e)
        out[e] = from_accumulator<OUT>(recompute<SCALED, HEAD_DIM>(q_row(row), k_gmem, v_gmem, kv_head, dim + e, visible,
                                                                   arguments));
    }
  }
}

template <typename T, typename OUT, bool SCALED, int HEAD_DIM, int GROUP_SIZE>
struct ShortKernel {
  using Smem = ShortMemory<HEAD_DIM, parts_of<T, SCALED>()>;
  static constexpr auto FUNCTION = short_attention_kernel<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE>;
  static_assert(Smem::bytes(Smem::MAX_WARPS) <= 99 * 1024, "shared memory must fit every GPU from sm_80 on (99 KiB)");

  static cudaError_t prepare() {
    return cudaFuncSetAttribute(FUNCTION, cudaFuncAttributeMaxDynamicSharedMemorySize, Smem::bytes(Smem::MAX_WARPS));
  }

  // Rows that can be read in whole vectors, at offsets that fit 32 bits.
  static bool rows_fit(const void* data, const int64_t (&stride)[4], int64_t seqlen, int64_t heads) {
    constexpr int64_t LIMIT = int64_t(1) << 30;
    return stride[3] == 1 && (stride[0] | stride[1] | stride[2]) % CHUNK == 0 &&
           reinterpret_cast<uintptr_t>(data) % alignof(Vec4<T>) == 0 && stride[1] <= LIMIT / (seqlen + 1) &&
           stride[2] <= LIMIT / (heads + 1);
  }

  static bool serves(const AttentionParams& p) {
    return p.seqlen_q <= Smem::MAX_WARPS * Smem::KEYS_PER_WARP && p.num_heads < (1 << 20) &&
           rows_fit(p.q, p.q_stride, p.seqlen_q, p.num_heads) && rows_fit(p.k, p.k_stride, p.seqlen_q, p.num_kv_heads) &&
           rows_fit(p.v, p.v_stride, p.seqlen_q, p.num_kv_heads) &&
           (p.q_scale_stride | p.k_scale_stride | p.v_scale_stride) < 128;
  }

  static cudaError_t launch(const AttentionParams& p, cudaStream_t stream) {
    ShortArguments a = {};
    a.q = p.q;
    a.k = p.k;
    a.v = p.v;
    a.out = p.out;
    a.q_batch_stride = p.q_stride[0];
    a.k_batch_stride = p.k_stride[0];
    a.v_batch_stride = p.v_stride[0];
    a.q_time_stride = static_cast<int>(p.q_stride[1]);
    a.q_head_stride = static_cast<int>(p.q_stride[2]);
    a.k_time_stride = static_cast<int>(p.k_stride[1]);
    a.k_head_stride = static_cast<int>(p.k_stride[2]);
    a.v_time_stride = static_cast<int>(p.v_stride[1]);
    a.v_head_stride = static_cast<int>(p.v_stride[2]);
    a.seqlen_q = static_cast<int>(p.seqlen_q);
    a.seqlen_k = static_cast<int>(p.seqlen_k < p.seqlen_q ? p.seqlen_k : p.seqlen_q);  // later keys are never seen
    a.num_heads = static_cast<int>(p.num_heads);
    a.exponent_scale = exponent_scale(p.softmax_scale, 0.0f);
    a.q_scale = p.q_scale;
    a.k_scale = p.k_scale;
    a.v_scale = p.v_scale;
    a.q_scale_stride = static_cast<int>(p.q_scale_stride);
    a.k_scale_stride = static_cast<int>(p.k_scale_stride);
    a.v_scale_stride = static_cast<int>(p.v_scale_stride);
    // A warp for every 8 keys, and enough threads to load the queries in one step.
    const int warps = larger((a.seqlen_k + 7) / 8, (Smem::ROWS * (HEAD_DIM / CHUNK) + 31) / 32);
    return launch_chunks(p, (p.seqlen_q * GROUP_SIZE + 15) / 16, [&](dim3 grid, int first_kv_head, int first_batch) {
      a.first_kv_head = first_kv_head;
      a.first_batch = first_batch;
      return launch_early<FUNCTION>(grid, warps * 32, Smem::bytes(warps), stream, a);
    });
  }
};

}  // namespace attention
