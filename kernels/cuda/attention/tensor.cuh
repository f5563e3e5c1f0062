// Causal grouped-query attention forward on the tensor cores of any GPU from sm_80 on (mma.sync), at fp32
// accuracy: one launch, no workspace, any length.
//
// Algorithm
//   A block owns ROW_WARPS * 16 packed query rows of one (batch, kv head) (see portable.cuh for the packing)
//   and walks their visible keys, KEY_WARPS * KEYS of them a step. A warp has 16 rows and KEYS keys of each step:
//   S = Q K^T, a running maximum and sum, O += P V. Warps with the same rows and other keys add up their parts
//   at the end, in a fixed order. Every operand is split into bfloat16 parts where it is read
//   (bfloat16_parts.cuh), which is exact, and the products of parts i and j are computed where i + j is small.
//
// Shapes and dtypes
//   As in portable.cuh, HEAD_DIM a multiple of 4, T any type that computes in float.
//
// Layout (shared memory, T)
//   q [ROW_WARPS * 16][ROW_STRIDE], BUFFERS times k [KEY_WARPS * KEYS][ROW_STRIDE] and v [the same][VALUE_STRIDE];
//   after the last step, where KEY_WARPS > 1, float partial outputs [KEY_WARPS][16][PARTIAL_STRIDE], maxima and sums.
//   The strides keep fragment loads free of bank conflicts.
//
// Requires
//   sm_80 or newer (bfloat16 mma.sync, cp.async). Contiguous rows aligned to four elements.
//
// Launch
//   grid (row blocks, kv heads, batch), longest rows first; 32 * ROW_WARPS * KEY_WARPS threads.
//
// Pipeline
//   copy q and step 0 | then for each step: barrier, copy the next step, compute this one
//
// Numerics
//   As in short.cuh: products of one magnitude share an accumulator, which starts from zero for each 8 columns of a
//   step and is then added in fp32. Weights have three parts, two where the output has 16 bits. Scales multiply S
//   and the output. Rows that come out not finite are computed again the plain way over their visible keys: an
//   infinity or a NaN in V also spoils rows of its step that do not see it, as zero times it is NaN.
//   Fixed order throughout: bitwise the same on repeat and inside any batch.
//
// Work
//   As in portable.cuh; up to six tensor-core products for each one.
//
// References
//   PTX ISA, mma.m16n8k16 fragment layout; cp.async.
//   Dao, FlashAttention-2 (2023), section 3 (rows to warps).
#pragma once

#include "cuda/attention/attention.cuh"
#include "cuda/attention/bfloat16_parts.cuh"
#include "cuda/attention/early_launch.cuh"
#include "cuda/attention/head_scales.cuh"
#include "cuda/attention/portable.cuh"
#include "cuda/attention/short.cuh"
#include "cuda/ptx/copy_async.cuh"
#include "cuda/ptx/mma.cuh"

namespace attention {

// Elements of a row in shared memory: at least `elements`, and `past` elements past a multiple of `bytes`.
constexpr int row_stride(int elements, int size, int past, int bytes) {
  while (elements * size % bytes != past * size % bytes) elements += CHUNK;
  return elements;
}

// How a block is cut up. LONG: many rows share each key; else many warps share each row, for latency.
template <typename T, int HEAD_DIM, bool LONG>
struct TensorTile {
  static constexpr int SIZE = static_cast<int>(sizeof(T));
  static constexpr int PADDED = round_up(HEAD_DIM, 16);
  static constexpr int ROW_STRIDE = row_stride(PADDED, SIZE, 16, 128);
  static constexpr int VALUE_STRIDE = row_stride(PADDED, SIZE, 4, 64);
  // A block's shared memory: data center chips have more than the others of their family.
  static constexpr int LIMIT = ARCH == 800 || ARCH == 900 || ARCH == 1000 ? 163 * 1024 : 99 * 1024;
  static constexpr int Q_BYTES = SIZE * 16 * ROW_STRIDE;                     // for each row warp
  static constexpr int KEY_BYTES = 2 * SIZE * (ROW_STRIDE + VALUE_STRIDE);  // in two buffers
  static constexpr int ROW_WARPS = !LONG ? 1 : 4 * Q_BYTES + 16 * KEY_BYTES <= LIMIT ? 4 : 2 * Q_BYTES + 16 * KEY_BYTES <= LIMIT ? 2 : 1;
  static constexpr int KEY_WARPS = LONG ? 1 : Q_BYTES + 64 * KEY_BYTES <= LIMIT ? 4 : Q_BYTES + 32 * KEY_BYTES <= LIMIT ? 2 : 1;
  static constexpr int KEYS = LONG && ROW_WARPS * Q_BYTES + 32 * KEY_BYTES <= LIMIT ? 32 : 16;  // of a warp in a step
  static constexpr int WARPS = ROW_WARPS * KEY_WARPS;
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int ROWS = 16 * ROW_WARPS;
  static constexpr int STEP_KEYS = KEY_WARPS * KEYS;
  static constexpr int STEP_ELEMENTS = STEP_KEYS * (ROW_STRIDE + VALUE_STRIDE);  // of k and v
  static constexpr int PARTIAL_STRIDE = PADDED + 8;
  static constexpr int PARTIAL_BYTES = KEY_WARPS > 1 ? 4 * 16 * (KEY_WARPS * (PARTIAL_STRIDE + 2) + 1) : 0;
  static constexpr int BYTES = larger(ROW_WARPS * Q_BYTES + STEP_KEYS * KEY_BYTES, PARTIAL_BYTES);
  // Where one step is all there is, its buffer is too: two blocks fit on an SM.
  static constexpr int ONE_STEP_BYTES = larger(ROW_WARPS * Q_BYTES + STEP_KEYS * KEY_BYTES / 2, PARTIAL_BYTES);
  static_assert(BYTES <= LIMIT, "shared memory must fit");
};

struct TensorArguments {
  const void* q;
  const void* k;
  const void* v;
  int64_t q_stride[3];  // batch, time, head
  int64_t k_stride[3];
  int64_t v_stride[3];
  int64_t seqlen_q;
  int64_t seqlen_k;  // that any row sees
  int64_t num_kv_heads;
  int first_kv_head;
  int first_batch;
  float exponent_scale;
  void* out;
  ScaleArguments scales_of_heads;
};

// Four neighbours as two pairs of parts.
template <typename T, int PARTS>
__device__ __forceinline__ void split_four(const T* from, uint32_t (&first)[PARTS], uint32_t (&second)[PARTS]) {
  const Vec4<T> x = *reinterpret_cast<const Vec4<T>*>(from);
  split_pair(to_accumulator(x.x[0]), to_accumulator(x.x[1]), first);
  split_pair(to_accumulator(x.x[2]), to_accumulator(x.x[3]), second);
}

// One row, the plain way, by the lanes of a warp: head_dim elements lane, lane + 32, ...
template <bool SCALED, int HEAD_DIM, typename T, typename OUT>
__device__ __noinline__ void recompute_row(OUT* out, const T* q, const T* k, const T* v, int64_t k_stride, int64_t v_stride,
                                           int64_t visible, HeadScales scales, float exponent_scale) {
  constexpr int EACH = (HEAD_DIM + 31) / 32;
  const int lane = threadIdx.x % 32;
  float query[EACH], o[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const int dim = lane + 32 * e;
    query[e] = dim < HEAD_DIM ? to_accumulator(q[dim]) * (SCALED ? scales.q : 1.0f) : 0.0f;
    o[e] = 0;
  }
  float max = minus_infinity(0.0f), sum = 0;
#pragma unroll 1
  for (int64_t key = 0; key < visible; ++key) {
    float s = 0;
#pragma unroll
    for (int e = 0; e < EACH; ++e)
      if (lane + 32 * e < HEAD_DIM)
        s += query[e] * (to_accumulator(k[key * k_stride + lane + 32 * e]) * (SCALED ? scales.k : 1.0f));
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) s += __shfl_xor_sync(0xffffffffu, s, offset);
    const float before = max;
    max = s > max ? s : max;
    const float shift = max == minus_infinity(0.0f) ? 0.0f : max;
    const float rescale = exponential(before - shift, exponent_scale);
    const float p = exponential(s - shift, exponent_scale);
    sum = sum * rescale + p;
#pragma unroll
    for (int e = 0; e < EACH; ++e)
      if (lane + 32 * e < HEAD_DIM)
        o[e] = o[e] * rescale + p * (to_accumulator(v[key * v_stride + lane + 32 * e]) * (SCALED ? scales.v : 1.0f));
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e)
    if (lane + 32 * e < HEAD_DIM) out[lane + 32 * e] = from_accumulator<OUT>(visible > 0 ? o[e] / sum : 0.0f);
}

template <typename T, typename OUT, bool SCALED, int HEAD_DIM, int GROUP_SIZE, bool LONG>
__global__ void __launch_bounds__(TensorTile<T, HEAD_DIM, LONG>::THREADS, 1)
    tensor_attention_kernel(const __grid_constant__ TensorArguments arguments) {
  using TILE = TensorTile<T, HEAD_DIM, LONG>;
  static_assert(HEAD_DIM % CHUNK == 0, "rows are moved in whole chunks");
  static_assert(!SCALED || GROUP_SIZE == 1, "scales are one per head, and heads of a group would differ");
  constexpr int PARTS = parts_of<T, false>();
  constexpr int P_PARTS = sizeof(OUT) == 2 ? 2 : 3;
  constexpr int S_LEVELS = smaller(2 * PARTS - 1, 3);
  constexpr int O_LEVELS = smaller(P_PARTS + PARTS - 1, P_PARTS);
  constexpr int PADDED = TILE::PADDED;
  constexpr int KEYS = TILE::KEYS;
  constexpr int KEY_WARPS = TILE::KEY_WARPS;
  constexpr int S_TILES = KEYS / 8;
  constexpr int O_TILES = (HEAD_DIM + 7) / 8;
  constexpr int CHUNKS = HEAD_DIM / CHUNK;
  constexpr int CHUNK_BYTES = CHUNK * TILE::SIZE;

  extern __shared__ __align__(16) unsigned char smem_bytes[];
  T* const q_smem = reinterpret_cast<T*>(smem_bytes);
  T* const step_smem = q_smem + TILE::ROWS * TILE::ROW_STRIDE;

  const int warp = threadIdx.x / 32;
  const int row_warp = warp / KEY_WARPS, key_warp = warp % KEY_WARPS;
  const int quad = threadIdx.x % 32 / 4;  // the fragment's row (A, D) or column (B)
  const int pair = threadIdx.x % 4;
  const int64_t kv_head = arguments.first_kv_head + static_cast<int>(blockIdx.y);
  const int64_t batch = arguments.first_batch + static_cast<int>(blockIdx.z);
  const T* q_gmem = static_cast<const T*>(arguments.q) + batch * arguments.q_stride[0] +
                    kv_head * GROUP_SIZE * arguments.q_stride[2];
  const T* k_gmem = static_cast<const T*>(arguments.k) + batch * arguments.k_stride[0] + kv_head * arguments.k_stride[2];
  const T* v_gmem = static_cast<const T*>(arguments.v) + batch * arguments.v_stride[0] + kv_head * arguments.v_stride[2];

  // Longest rows first.
  const int64_t first_row = static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * TILE::ROWS;
  const int64_t rows_left = arguments.seqlen_q * GROUP_SIZE - first_row;
  const int rows_here = rows_left < TILE::ROWS ? static_cast<int>(rows_left) : TILE::ROWS;
  const auto q_row = [&](int row) {
    const uint64_t packed = first_row + row;
    return q_gmem + packed / GROUP_SIZE * arguments.q_stride[1] + packed % GROUP_SIZE * arguments.q_stride[2];
  };
  const auto seen_by = [&](int row) {
    const int64_t time = static_cast<uint64_t>(first_row + row) / GROUP_SIZE;
    return time + 1 < arguments.seqlen_k ? time + 1 : arguments.seqlen_k;
  };
  const int64_t num_keys = seen_by(rows_here - 1);
  const int64_t steps = (num_keys + TILE::STEP_KEYS - 1) / TILE::STEP_KEYS;

  const auto copy_rows = [&](T* smem, int stride, int rows, int64_t rows_there, auto row_gmem) {
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * CHUNKS; i += TILE::THREADS) {
      const int row = i / CHUNKS, dim = i % CHUNKS * CHUNK;
      const bool valid = row < rows_there;
      ptx::copy_async<CHUNK_BYTES>(smem + row * stride + dim, row_gmem(valid ? row : 0) + dim, valid);
    }
  };
  const auto copy_step = [&](int64_t step) {
    T* const k_smem = step_smem + step % 2 * TILE::STEP_ELEMENTS;
    const int64_t first_key = step * TILE::STEP_KEYS;
    copy_rows(k_smem, TILE::ROW_STRIDE, TILE::STEP_KEYS, num_keys - first_key,
              [&](int row) { return k_gmem + (first_key + row) * arguments.k_stride[1]; });
    copy_rows(k_smem + TILE::STEP_KEYS * TILE::ROW_STRIDE, TILE::VALUE_STRIDE, TILE::STEP_KEYS, num_keys - first_key,
              [&](int row) { return v_gmem + (first_key + row) * arguments.v_stride[1]; });
  };
  if constexpr (PADDED != HEAD_DIM) {  // head_dim's padding is zero: it meets padding, or is not stored
    constexpr int SPARE = PADDED - HEAD_DIM;
    const int padded_rows = TILE::ROWS + (steps > 1 ? 4 : 2) * TILE::STEP_KEYS;
    for (int i = threadIdx.x; i < padded_rows * SPARE; i += TILE::THREADS) {
      const int dim = HEAD_DIM + i % SPARE, row = i / SPARE, key = row - TILE::ROWS;
      const int buffer = key / (2 * TILE::STEP_KEYS), in_buffer = key % (2 * TILE::STEP_KEYS);
      T* const k_smem = step_smem + buffer * TILE::STEP_ELEMENTS;
      T* const place = row < TILE::ROWS ? q_smem + row * TILE::ROW_STRIDE
                       : in_buffer < TILE::STEP_KEYS
                           ? k_smem + in_buffer * TILE::ROW_STRIDE
                           : k_smem + TILE::STEP_KEYS * TILE::ROW_STRIDE + (in_buffer - TILE::STEP_KEYS) * TILE::VALUE_STRIDE;
      place[dim] = T{};
    }
  }
  ptx::wait_for_previous_kernel();
  if (steps > 0) {  // else nothing waits for the copies
    copy_rows(q_smem, TILE::ROW_STRIDE, TILE::ROWS, rows_here, q_row);
    copy_step(0);
  }
  HeadScales scales = {1, 1, 1};
  if constexpr (SCALED) scales = arguments.scales_of_heads.of(kv_head);
  const float s_scale = scales.q * scales.k;

  float row_max[2] = {minus_infinity(0.0f), minus_infinity(0.0f)}, row_sum[2] = {0, 0};
  float o[O_TILES][4] = {};
  const int64_t seen_by_all = seen_by(row_warp * 16);
  const int64_t seen_by_any = row_warp * 16 < rows_here ? seen_by(smaller(row_warp * 16 + 15, rows_here - 1)) : 0;
#pragma unroll 1
  for (int64_t step = 0; step < steps; ++step) {
    ptx::wait_for_copies();
    __syncthreads();
    if (step + 1 < steps) copy_step(step + 1);
    const int64_t first_key = step * TILE::STEP_KEYS + key_warp * KEYS;
    if (first_key >= seen_by_any) continue;
    const T* const k_smem = step_smem + step % 2 * TILE::STEP_ELEMENTS + key_warp * KEYS * TILE::ROW_STRIDE;
    const T* const v_smem = step_smem + step % 2 * TILE::STEP_ELEMENTS + TILE::STEP_KEYS * TILE::ROW_STRIDE +
                            key_warp * KEYS * TILE::VALUE_STRIDE;
    // S for rows quad and quad + 8, keys 8 * tile + 2 * pair and the next. The lane's four neighbouring
    // head_dim elements serve two k-steps: q and k are permuted alike.
    SplitAccumulator<S_LEVELS> scores[S_TILES];
#pragma unroll 2
    for (int dim = 0; dim < PADDED; dim += 16) {
      uint32_t upper[2][PARTS], lower[2][PARTS];
      const T* q = q_smem + (row_warp * 16 + quad) * TILE::ROW_STRIDE + dim + pair * 4;
      split_four(q, upper[0], upper[1]);
      split_four(q + 8 * TILE::ROW_STRIDE, lower[0], lower[1]);
#pragma unroll
      for (int tile = 0; tile < S_TILES; ++tile) {
        uint32_t first[PARTS], second[PARTS];
        split_four(k_smem + (tile * 8 + quad) * TILE::ROW_STRIDE + dim + pair * 4, first, second);
#pragma unroll
        for (int i = PARTS - 1; i >= 0; --i)
#pragma unroll
          for (int j = smaller(2 - i, PARTS - 1); j >= 0; --j)
            ptx::mma_k16(scores[tile].level[i + j], make_uint2(upper[0][i], upper[1][i]),
                         make_uint2(lower[0][i], lower[1][i]), make_uint2(first[j], second[j]));
      }
    }
    float s[S_TILES][4];
    const bool is_cut = first_key + KEYS > seen_by_all;
    const int limit[2] = {static_cast<int>(seen_by(row_warp * 16 + quad) - first_key),
                          static_cast<int>(seen_by(row_warp * 16 + quad + 8) - first_key)};
    float max[2] = {row_max[0], row_max[1]};
#pragma unroll
    for (int tile = 0; tile < S_TILES; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float value = scores[tile].sum(i);
        value += value - value;  // an infinity becomes NaN: recompute_row() says what it was
        if (SCALED) value *= s_scale;
        if (is_cut && tile * 8 + pair * 2 + i % 2 >= limit[i / 2]) value = minus_infinity(0.0f);
        s[tile][i] = value;
        max[i / 2] = value > max[i / 2] ? value : max[i / 2];
      }
    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, max[half], offset);
        max[half] = other > max[half] ? other : max[half];
      }
      // While a row has seen nothing above -inf its weights are zero, not exp(-inf + inf).
      const float shift = max[half] == minus_infinity(0.0f) ? 0.0f : max[half];
      rescale[half] = exponential(row_max[half] - shift, arguments.exponent_scale);
      row_max[half] = max[half];
      float sum = 0;
#pragma unroll
      for (int tile = 0; tile < S_TILES; ++tile)
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          s[tile][i] = exponential(s[tile][i] - shift, arguments.exponent_scale);
          sum += s[tile][i];
        }
      row_sum[half] = row_sum[half] * rescale[half] + sum;
    }
    uint32_t p[S_TILES][2][P_PARTS];
#pragma unroll
    for (int tile = 0; tile < S_TILES; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) split_pair(s[tile][half * 2], s[tile][half * 2 + 1], p[tile][half]);

    // Key 2t is k-step 2t of its tile: what S leaves in a lane is what P V needs.
#pragma unroll
    for (int n = 0; n < O_TILES; ++n) {
      SplitAccumulator<O_LEVELS> products;
#pragma unroll
      for (int tile = 0; tile < S_TILES; tile += 2) {
        const T* v = v_smem + (tile * 8 + pair * 2) * TILE::VALUE_STRIDE + n * 8 + quad;
        uint32_t first[PARTS], second[PARTS];
        split_pair(to_accumulator(v[0]), to_accumulator(v[TILE::VALUE_STRIDE]), first);
        split_pair(to_accumulator(v[8 * TILE::VALUE_STRIDE]), to_accumulator(v[9 * TILE::VALUE_STRIDE]), second);
#pragma unroll
        for (int i = P_PARTS - 1; i >= 0; --i)
#pragma unroll
          for (int j = smaller(O_LEVELS - 1 - i, PARTS - 1); j >= 0; --j)
            ptx::mma_k16(products.level[i + j], make_uint2(p[tile][0][i], p[tile + 1][0][i]),
                         make_uint2(p[tile][1][i], p[tile + 1][1][i]), make_uint2(first[j], second[j]));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = o[n][i] * rescale[i / 2] + products.sum(i);
    }
  }
#pragma unroll
  for (int offset = 1; offset < 4; offset *= 2)
#pragma unroll
    for (int half = 0; half < 2; ++half) row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], offset);

  const auto out_row = [&](int row) {
    const uint64_t packed = first_row + row;
    return static_cast<OUT*>(arguments.out) +
           (((batch * arguments.seqlen_q + packed / GROUP_SIZE) * arguments.num_kv_heads + kv_head) * GROUP_SIZE +
            packed % GROUP_SIZE) *
               HEAD_DIM;
  };
  const auto recompute = [&](int row) {
    recompute_row<SCALED, HEAD_DIM>(out_row(row), q_row(row), k_gmem, v_gmem, arguments.k_stride[1], arguments.v_stride[1],
                                    seen_by(row), scales, arguments.exponent_scale);
  };
  // No keys at all: the empty sum is zero, not 0 / 0.
  const auto factor = [&](float sum) { return num_keys == 0 ? 0.0f : reciprocal(sum) * scales.v; };
  if constexpr (KEY_WARPS == 1) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_warp * 16 + quad + half * 8;
      const float normalise = factor(row_sum[half]);
      bool is_good = true;
#pragma unroll
      for (int n = 0; n < O_TILES; ++n)
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          o[n][i] *= normalise;
          is_good = is_good && (o[n][i] - o[n][i] == 0 || n * 8 + pair * 2 >= HEAD_DIM);
        }
      const unsigned bad = __ballot_sync(0xffffffffu, row < rows_here && !is_good);
      if (row < rows_here && (bad >> quad * 4 & 15) == 0) {
        OUT* const out = out_row(row);
        struct alignas(2 * sizeof(OUT)) Two {
          OUT x, y;
        };
#pragma unroll
        for (int n = 0; n < O_TILES; ++n)
          if (HEAD_DIM % 8 == 0 || n * 8 + pair * 2 < HEAD_DIM)
            *reinterpret_cast<Two*>(out + n * 8 + pair * 2) = {from_accumulator<OUT>(o[n][half * 2]),
                                                               from_accumulator<OUT>(o[n][half * 2 + 1])};
      }
#pragma unroll 1
      for (int g = 0; g < 8; ++g)
        if ((bad >> g * 4 & 15) != 0) recompute(row_warp * 16 + g + half * 8);
    }
  } else {
    float* const partial_smem = reinterpret_cast<float*>(smem_bytes);  // [KEY_WARPS][16][PARTIAL_STRIDE]
    float* const max_smem = partial_smem + KEY_WARPS * 16 * TILE::PARTIAL_STRIDE;
    float* const sum_smem = max_smem + KEY_WARPS * 16;
    int* const bad_smem = reinterpret_cast<int*>(sum_smem + KEY_WARPS * 16);
    __syncthreads();  // keys and values are done with
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = key_warp * 16 + quad + half * 8;
#pragma unroll
      for (int n = 0; n < O_TILES; ++n)
        *reinterpret_cast<float2*>(partial_smem + place * TILE::PARTIAL_STRIDE + n * 8 + pair * 2) =
            make_float2(o[n][half * 2], o[n][half * 2 + 1]);
      if (pair == 0) {
        max_smem[place] = row_max[half];
        sum_smem[place] = row_sum[half];
      }
    }
    if (threadIdx.x < 16) bad_smem[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < rows_here * CHUNKS; i += TILE::THREADS) {
      const int row = i / CHUNKS, dim = i % CHUNKS * CHUNK;
      float max = minus_infinity(0.0f);
#pragma unroll
      for (int w = 0; w < KEY_WARPS; ++w) max = max_smem[w * 16 + row] > max ? max_smem[w * 16 + row] : max;
      const float shift = max == minus_infinity(0.0f) ? 0.0f : max;
      float sum = 0;
      float value[CHUNK] = {};
#pragma unroll
      for (int w = 0; w < KEY_WARPS; ++w) {
        const float share = exponential(max_smem[w * 16 + row] - shift, arguments.exponent_scale);
        const float4 part = *reinterpret_cast<const float4*>(partial_smem + (w * 16 + row) * TILE::PARTIAL_STRIDE + dim);
        sum += sum_smem[w * 16 + row] * share;
        value[0] += part.x * share, value[1] += part.y * share, value[2] += part.z * share, value[3] += part.w * share;
      }
      const float normalise = factor(sum);
      Vec4<OUT> result;
      bool is_good = true;
#pragma unroll
      for (int e = 0; e < CHUNK; ++e) {
        value[e] *= normalise;
        is_good = is_good && value[e] - value[e] == 0;
        result.x[e] = from_accumulator<OUT>(value[e]);
      }
      store_vector(out_row(row) + dim, result);
      if (!is_good) bad_smem[row] = 1;
    }
    __syncthreads();
#pragma unroll 1
    for (int row = warp; row < rows_here; row += TILE::WARPS)
      if (bad_smem[row] != 0) recompute(row);
  }
}

// HAS_LONG: else for lengths up to MAX_LATENCY_SEQLEN alone.
template <typename T, typename OUT, bool SCALED, int HEAD_DIM, int GROUP_SIZE, bool HAS_LONG = true>
struct TensorKernel {
  // Up to here many warps share a row; beyond, rows share keys.
  static constexpr int64_t MAX_LATENCY_SEQLEN = 256;

  template <bool LONG>
  static constexpr auto FUNCTION = tensor_attention_kernel<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE, LONG>;

  static cudaError_t prepare() {
    constexpr auto SMEM = cudaFuncAttributeMaxDynamicSharedMemorySize;
    const cudaError_t error = cudaFuncSetAttribute(FUNCTION<false>, SMEM, TensorTile<T, HEAD_DIM, false>::BYTES);
    if constexpr (HAS_LONG) {
      if (error == cudaSuccess) return cudaFuncSetAttribute(FUNCTION<true>, SMEM, TensorTile<T, HEAD_DIM, true>::BYTES);
    }
    return error;
  }

  static bool serves(const AttentionParams& p) {
    return (HAS_LONG || p.seqlen_q <= MAX_LATENCY_SEQLEN) && rows_are_vectors<T, HEAD_DIM>(p.q, p.q_stride) &&
           rows_are_vectors<T, HEAD_DIM>(p.k, p.k_stride) && rows_are_vectors<T, HEAD_DIM>(p.v, p.v_stride);
  }

  static cudaError_t launch(const AttentionParams& p, cudaStream_t stream) {
    if constexpr (HAS_LONG) {
      if (p.seqlen_q > MAX_LATENCY_SEQLEN) return launch<true>(p, stream);
    }
    return launch<false>(p, stream);
  }

 private:
  template <bool LONG>
  static cudaError_t launch(const AttentionParams& p, cudaStream_t stream) {
    using TILE = TensorTile<T, HEAD_DIM, LONG>;
    TensorArguments a = {};
    a.q = p.q;
    a.k = p.k;
    a.v = p.v;
    for (int i = 0; i < 3; ++i) {
      a.q_stride[i] = p.q_stride[i];
      a.k_stride[i] = p.k_stride[i];
      a.v_stride[i] = p.v_stride[i];
    }
    a.seqlen_q = p.seqlen_q;
    a.seqlen_k = p.seqlen_k;
    a.num_kv_heads = p.num_kv_heads;
    a.exponent_scale = exponent_scale(p.softmax_scale, 0.0f);
    a.out = p.out;
    if (SCALED) a.scales_of_heads = ScaleArguments::from(p);
    const int smem_bytes =
        p.seqlen_q <= TILE::STEP_KEYS || p.seqlen_k <= TILE::STEP_KEYS ? TILE::ONE_STEP_BYTES : TILE::BYTES;
    const int64_t row_blocks = (p.seqlen_q * GROUP_SIZE + TILE::ROWS - 1) / TILE::ROWS;
    return launch_chunks(p, row_blocks, [&](dim3 grid, int first_kv_head, int first_batch) {
      a.first_kv_head = first_kv_head;
      a.first_batch = first_batch;
      return launch_early<FUNCTION<LONG>>(grid, TILE::THREADS, smem_bytes, stream, a);
    });
  }
};

// The kernels of one specialisation, and which of them serves a call: by shape and layout, never by batch.
template <typename T, typename OUT, bool SCALED, int HEAD_DIM, int GROUP_SIZE>
struct TensorAttention {
  using Others = Attention<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE>;
  using Tensor = TensorKernel<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE>;
  static_assert(ARCH >= 800, "bfloat16 on the tensor cores begins with sm_80");
  static_assert(HEAD_DIM % CHUNK == 0, "rows are moved in whole chunks");

  static int32_t prepare() {
    const cudaError_t error = Tensor::prepare();
    return error == cudaSuccess ? Others::prepare() : error;
  }

  static int32_t launch(const AttentionParams& params, void* stream) {
    if constexpr (Others::HAS_SHORT) {
      if (ShortKernel<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE>::serves(params)) return Others::launch(params, stream);
    }
    if (!Tensor::serves(params)) return Others::launch(params, stream);
    return Tensor::launch(params, static_cast<cudaStream_t>(stream));
  }
};

}  // namespace attention
