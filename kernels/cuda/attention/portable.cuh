// Causal grouped-query attention forward for any CUDA GPU: fp32 (or fp64) arithmetic on
// the ordinary cores, one pass over the keys.
//
// Algorithm
//   A block owns BLOCK_M packed query rows of one (batch, kv head). The GROUP_SIZE query
//   heads that share a kv head are packed into the row index (row m is time m / GROUP_SIZE,
//   head m % GROUP_SIZE), so keys and values are read once for the whole group. The block
//   walks the visible keys in tiles of BLOCK_N with a running maximum and sum. A group of
//   LANES lanes owns ROWS_PER_LANE rows: in S = Q K^T each lane takes every LANES-th key,
//   in O += P V each lane takes chunks of four head_dim elements, and where head_dim is
//   short the remaining lanes split the keys among themselves. Rows never leave their warp,
//   so the only block-wide barriers are the two around a tile's load.
//
// Shapes and dtypes
//   q [batch, seqlen_q, num_heads, HEAD_DIM], k and v [batch, seqlen_k, num_kv_heads,
//   HEAD_DIM] of type T; out like q, contiguous, of type OUT. HEAD_DIM 1 to 256. T is float,
//   double, Half, BFloat16, int8_t, uint8_t, Float8E4M3 or Float8E5M2. SCALED multiplies each
//   element of q, k and v by its head's scale while it is loaded.
//
// Layout (shared memory, accumulator type)
//   q_smem [BLOCK_M][ROW_STRIDE]  k_smem [BLOCK_N][ROW_STRIDE]  v_smem [BLOCK_N][HEAD_DIM_PADDED]
//   p_smem [row group][BLOCK_N][ROWS_PER_LANE]
//   ROW_STRIDE / 4 is odd, so that lanes on neighbouring rows fall into different banks.
//
// Requires
//   sm_75 or newer. Any strides; where rows are contiguous and aligned to four elements they
//   are moved four elements at a time.
//
// Launch
//   grid (row blocks, kv heads, batch), longest rows first; WARPS * 32 threads; shared memory
//   sizeof(SharedMemory), at most 64 KiB. No workspace.
//
// Numerics
//   Plain fp32 (fp64) multiply-add in a fixed order: bitwise the same on repeat and inside any
//   batch. The maximum is subtracted before the scale is multiplied in, so logits of any size
//   keep their differences. Masked keys are skipped, not multiplied by zero: a NaN or an
//   infinity in one key reaches only rows that see it.
//
// Work
//   4 * num_heads * HEAD_DIM FLOP for each visible (query, key) pair. Least bytes: q, k, v and
//   out once each.
//
// References
//   Dao et al., FlashAttention (2022), section 3 (tiling, running softmax).
#pragma once

#include <cstdint>

#include "bindings/attention_params.h"
#include "cuda/attention/early_launch.cuh"
#include "cuda/types.cuh"

namespace attention {

constexpr int CHUNK = 4;  // head_dim elements a lane moves and multiplies as one unit

// Whether the kernels around the Hopper kernel start while the one before them ends.
constexpr bool STARTS_EARLY = ARCH >= 900;

constexpr int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }
constexpr int power_of_two_from(int x) { return x <= 1 ? 1 : 2 * power_of_two_from((x + 1) / 2); }
constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

// How a block is cut up, by head_dim in 32-bit words: as many rows and keys as 64 KiB of shared
// memory and the registers of a thread hold.
template <typename ACC, int HEAD_DIM>
struct Tile {
  static constexpr int WIDTH = round_up(HEAD_DIM, CHUNK) * static_cast<int>(sizeof(ACC)) / 4;
  static constexpr int WARPS = WIDTH > 64 ? 2 : 4;
  static constexpr int THREADS = WARPS * 32;
  static constexpr int LANES = 8;
  static constexpr int ROWS_PER_LANE = WIDTH > 256 ? 1 : WIDTH > 128 ? 2 : 4;
  static constexpr int ROW_GROUPS = THREADS / LANES;
  static constexpr int BLOCK_M = ROW_GROUPS * ROWS_PER_LANE;
  static constexpr int BLOCK_N = WIDTH > 256 ? 8 : WIDTH > 128 ? 16 : WIDTH > 32 ? 32 : 64;
  static constexpr int KEYS_PER_LANE = BLOCK_N / LANES;
  static_assert(BLOCK_N % LANES == 0, "every lane must own the same number of keys");
};

template <typename ACC, int HEAD_DIM>
struct SharedMemory {
  using TILE = Tile<ACC, HEAD_DIM>;
  static constexpr int HEAD_DIM_PADDED = round_up(HEAD_DIM, CHUNK);
  static constexpr int ROW_STRIDE = (HEAD_DIM_PADDED / CHUNK) % 2 == 1 ? HEAD_DIM_PADDED : HEAD_DIM_PADDED + CHUNK;
  static constexpr int P_STRIDE = TILE::BLOCK_N * TILE::ROWS_PER_LANE + CHUNK;

  alignas(16) ACC q[TILE::BLOCK_M * ROW_STRIDE];
  alignas(16) ACC k[TILE::BLOCK_N * ROW_STRIDE];
  alignas(16) ACC v[TILE::BLOCK_N * HEAD_DIM_PADDED];
  alignas(16) ACC p[TILE::ROW_GROUPS * P_STRIDE];
};

__device__ __forceinline__ float minus_infinity(float) { return -__int_as_float(0x7f800000); }
__device__ __forceinline__ double minus_infinity(double) { return -__longlong_as_double(0x7ff0000000000000ll); }

// exp(x * scale), where exponent_scale() has folded log2(e) into the scale for fp32.
__device__ __forceinline__ float exponential(float x, float scale) { return ptx::exp2_approximate(x * scale); }
__device__ __forceinline__ double exponential(double x, double scale) { return exp(x * scale); }
inline float exponent_scale(double softmax_scale, float) { return static_cast<float>(softmax_scale * 1.4426950408889634); }
inline double exponent_scale(double softmax_scale, double) { return softmax_scale; }

// Where rows of a tile live: row i starts at base + i * row_stride.
template <typename T>
struct Rows {
  const T* base;
  int64_t row_stride;
  int64_t inner_stride;
  bool vectors;  // rows are contiguous and aligned to CHUNK elements

  __device__ __forceinline__ const T* row(int i) const { return base + i * row_stride; }
};

// The packed rows of a group: GROUP_SIZE heads a time step.
template <typename T, int GROUP_SIZE>
struct PackedRows {
  const T* base;
  int64_t first_row;
  int64_t time_stride;
  int64_t head_stride;
  int64_t inner_stride;
  bool vectors;

  __device__ __forceinline__ const T* row(int i) const {
    const uint64_t packed = first_row + i;
    return base + packed / GROUP_SIZE * time_stride + packed % GROUP_SIZE * head_stride;
  }
};

// Copies `count` rows of HEAD_DIM elements from global into shared memory, in the accumulator
// type and times `scale` where SCALED. STEPS loads are in flight before the first is stored.
template <bool SCALED, int HEAD_DIM, int SMEM_STRIDE, int THREADS, typename ACC, typename T, typename ROWS>
__device__ __forceinline__ void load_rows(ACC* smem, int count, const ROWS& from, ACC scale) {
  constexpr int CHUNKS = round_up(HEAD_DIM, CHUNK) / CHUNK;
  constexpr int STEPS = 8;
  if (from.vectors) {
#pragma unroll 1
    for (int first = threadIdx.x; first < count * CHUNKS; first += STEPS * THREADS) {
      Vec4<T> loaded[STEPS];
#pragma unroll
      for (int i = 0; i < STEPS; ++i) {
        const int index = first + i * THREADS;
        if (index < count * CHUNKS)
          loaded[i] = *reinterpret_cast<const Vec4<T>*>(from.row(index / CHUNKS) + index % CHUNKS * CHUNK);
      }
#pragma unroll
      for (int i = 0; i < STEPS; ++i) {
        const int index = first + i * THREADS;
        if (index < count * CHUNKS) {
          Vec4<ACC> value;
#pragma unroll
          for (int e = 0; e < CHUNK; ++e) {
            value.x[e] = to_accumulator(loaded[i].x[e]);
            if (SCALED) value.x[e] *= scale;
          }
          *reinterpret_cast<Vec4<ACC>*>(smem + index / CHUNKS * SMEM_STRIDE + index % CHUNKS * CHUNK) = value;
        }
      }
    }
  } else {
#pragma unroll 1
    for (int index = threadIdx.x; index < count * CHUNKS * CHUNK; index += THREADS) {
      const int dim = index % (CHUNKS * CHUNK);
      ACC value = 0;  // head_dim is padded to whole chunks with zeros
      if (dim < HEAD_DIM) value = to_accumulator(from.row(index / (CHUNKS * CHUNK))[dim * from.inner_stride]);
      smem[index / (CHUNKS * CHUNK) * SMEM_STRIDE + dim] = SCALED ? value * scale : value;
    }
  }
}

// O += P V for this lane's rows and chunks over its share of keys [from, to) of the tile.
// MASKED skips key j for row i where j >= limit[i].
template <bool MASKED, typename LAYOUT, typename ACC>
__device__ __forceinline__ void accumulate_values(ACC (&o)[LAYOUT::ROWS][LAYOUT::CHUNKS_PER_LANE][CHUNK],
                                                  const ACC* __restrict__ p_smem, const ACC* __restrict__ v_smem,
                                                  int from, int to, const int (&limit)[LAYOUT::ROWS], int first_chunk) {
  constexpr int ROWS = LAYOUT::ROWS;
#pragma unroll 4
  for (int j = from; j < to; j += LAYOUT::KEY_SPLITS) {
    ACC p[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) p[i] = p_smem[j * ROWS + i];
#pragma unroll
    for (int c = 0; c < LAYOUT::CHUNKS_PER_LANE; ++c) {
      const int chunk = first_chunk + c * LAYOUT::CHUNK_LANES;
      if (LAYOUT::CHUNKS % LAYOUT::CHUNK_LANES != 0 && chunk >= LAYOUT::CHUNKS) break;
      const Vec4<ACC> value = *reinterpret_cast<const Vec4<ACC>*>(v_smem + (j * LAYOUT::CHUNKS + chunk) * CHUNK);
#pragma unroll
      for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int e = 0; e < CHUNK; ++e)
          if (!MASKED || j < limit[i]) o[i][c][e] += p[i] * value.x[e];
    }
  }
}

// How the lanes of a row share O += P V: CHUNK_LANES of them walk head_dim, and what is
// left splits the keys.
template <typename TILE, int HEAD_DIM>
struct OutputLayout {
  static constexpr int ROWS = TILE::ROWS_PER_LANE;
  static constexpr int CHUNKS = round_up(HEAD_DIM, CHUNK) / CHUNK;
  static constexpr int CHUNK_LANES = smaller(TILE::LANES, power_of_two_from(CHUNKS));
  static constexpr int KEY_SPLITS = TILE::LANES / CHUNK_LANES;
  static constexpr int CHUNKS_PER_LANE = (CHUNKS + CHUNK_LANES - 1) / CHUNK_LANES;
};

// Row tiles that another kernel has written: not zero in finished[batch][kv head][row tile] of `rows`
// packed rows each. Null where there is no such kernel.
struct FinishedRows {
  const unsigned char* finished;
  int rows;
  int64_t tiles;
};

// What the host works out once for a launch.
template <typename ACC>
struct LaunchArguments {
  ACC exponent_scale;  // softmax_scale, times log2(e) where the exponential is base 2
  int first_kv_head;
  int first_batch;
  bool q_vectors;
  bool k_vectors;
  bool v_vectors;
  FinishedRows others;
};

// The rows of one block: packed rows first_row to first_row + BLOCK_M of one (batch, kv head).
template <typename T, typename OUT, bool SCALED, int HEAD_DIM, int GROUP_SIZE>
__device__ __forceinline__ void attend_rows(const AttentionParams& params,
                                            const LaunchArguments<typename AccumulatorOf<T>::type>& arguments,
                                            int64_t first_row, int64_t kv_head, int64_t batch) {
  using ACC = typename AccumulatorOf<T>::type;
  using TILE = Tile<ACC, HEAD_DIM>;
  using Smem = SharedMemory<ACC, HEAD_DIM>;
  using Output = OutputLayout<TILE, HEAD_DIM>;
  constexpr int THREADS = TILE::THREADS;
  constexpr int LANES = TILE::LANES;
  constexpr int ROWS = TILE::ROWS_PER_LANE;
  constexpr int KEYS = TILE::KEYS_PER_LANE;
  constexpr int BLOCK_M = TILE::BLOCK_M;
  constexpr int BLOCK_N = TILE::BLOCK_N;
  constexpr int ROW_GROUPS = TILE::ROW_GROUPS;
  constexpr int CHUNKS = Output::CHUNKS;
  constexpr int CHUNKS_PER_LANE = Output::CHUNKS_PER_LANE;
  constexpr int KEY_SPLITS = Output::KEY_SPLITS;
  constexpr int DOT_CHUNKS = 16;

  extern __shared__ __align__(16) unsigned char smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);

  const int lane = threadIdx.x % LANES;
  const int row_group = threadIdx.x / LANES;
  const int64_t rows_left = params.seqlen_q * GROUP_SIZE - first_row;
  const int rows_here = rows_left < BLOCK_M ? static_cast<int>(rows_left) : BLOCK_M;
  const int64_t last_time = static_cast<uint64_t>(first_row + rows_here - 1) / GROUP_SIZE;
  const int64_t num_keys = last_time + 1 < params.seqlen_k ? last_time + 1 : params.seqlen_k;

  const PackedRows<T, GROUP_SIZE> q_rows = {
      static_cast<const T*>(params.q) + batch * params.q_stride[0] + kv_head * GROUP_SIZE * params.q_stride[2],
      first_row, params.q_stride[1], params.q_stride[2], params.q_stride[3], arguments.q_vectors};
  Rows<T> k_rows = {
      static_cast<const T*>(params.k) + batch * params.k_stride[0] + kv_head * params.k_stride[2],
      params.k_stride[1], params.k_stride[3], arguments.k_vectors};
  Rows<T> v_rows = {
      static_cast<const T*>(params.v) + batch * params.v_stride[0] + kv_head * params.v_stride[2],
      params.v_stride[1], params.v_stride[3], arguments.v_vectors};
  ACC q_scale = 1, k_scale = 1, v_scale = 1;
  if (SCALED) {
    static_assert(!SCALED || GROUP_SIZE == 1, "scales are one per head, and heads of a group would differ");
    q_scale = params.q_scale[kv_head * params.q_scale_stride];
    k_scale = params.k_scale[kv_head * params.k_scale_stride];
    v_scale = params.v_scale[kv_head * params.v_scale_stride];
  }
  load_rows<SCALED, HEAD_DIM, Smem::ROW_STRIDE, THREADS, ACC, T>(smem.q, rows_here, q_rows, q_scale);

  // Row i of this lane is packed row first_row + row_group + i * ROW_GROUPS; it sees keys
  // [0, visible[i]).
  int64_t visible[ROWS];
  ACC row_max[ROWS];
  ACC row_sum[ROWS];  // this lane's share
  ACC o[ROWS][CHUNKS_PER_LANE][CHUNK];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int row = row_group + i * ROW_GROUPS;
    const int64_t sees = static_cast<uint64_t>(first_row + row) / GROUP_SIZE + 1;
    visible[i] = row < rows_here ? (sees < params.seqlen_k ? sees : params.seqlen_k) : 0;
    row_max[i] = minus_infinity(ACC());
    row_sum[i] = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS_PER_LANE; ++c)
#pragma unroll
      for (int e = 0; e < CHUNK; ++e) o[i][c][e] = 0;
  }
  const ACC scale = arguments.exponent_scale;
  const int first_chunk = lane % Output::CHUNK_LANES;
  const int key_split = lane / Output::CHUNK_LANES;
  ACC* p_smem = smem.p + row_group * Smem::P_STRIDE;

#pragma unroll 1
  for (int64_t first_key = 0; first_key < num_keys; first_key += BLOCK_N) {
    const int keys_here = static_cast<int>(num_keys - first_key < BLOCK_N ? num_keys - first_key : BLOCK_N);
    if (first_key > 0) __syncthreads();  // every warp is done with the tile before
    load_rows<SCALED, HEAD_DIM, Smem::ROW_STRIDE, THREADS, ACC, T>(smem.k, keys_here, k_rows, k_scale);
    load_rows<SCALED, HEAD_DIM, Smem::HEAD_DIM_PADDED, THREADS, ACC, T>(smem.v, keys_here, v_rows, v_scale);
    k_rows.base += BLOCK_N * k_rows.row_stride;
    v_rows.base += BLOCK_N * v_rows.row_stride;
    __syncthreads();

    // limit[i]: keys of this tile that row i sees.
    int limit[ROWS];
    int shortest = keys_here;
    int longest = 0;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int64_t sees = visible[i] - first_key;
      limit[i] = sees < 0 ? 0 : (sees < keys_here ? static_cast<int>(sees) : keys_here);
      shortest = limit[i] < shortest ? limit[i] : shortest;
      longest = limit[i] > longest ? limit[i] : longest;
    }

    // Long dot products are summed in blocks, which keeps their rounding error that of short ones.
    ACC s[ROWS][KEYS] = {};
#pragma unroll 1
    for (int dot_start = 0; dot_start < CHUNKS; dot_start += DOT_CHUNKS) {
      ACC dot[ROWS][KEYS] = {};
#pragma unroll 2
      for (int chunk = dot_start; chunk < smaller(dot_start + DOT_CHUNKS, CHUNKS); ++chunk) {
        Vec4<ACC> q[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
          q[i] = *reinterpret_cast<const Vec4<ACC>*>(smem.q + (row_group + i * ROW_GROUPS) * Smem::ROW_STRIDE +
                                                     chunk * CHUNK);
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
          const Vec4<ACC> k =
              *reinterpret_cast<const Vec4<ACC>*>(smem.k + (lane + j * LANES) * Smem::ROW_STRIDE + chunk * CHUNK);
#pragma unroll
          for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int e = 0; e < CHUNK; ++e) dot[i][j] += q[i].x[e] * k.x[e];
        }
      }
#pragma unroll
      for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < KEYS; ++j) s[i][j] += dot[i][j];
    }

#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      ACC new_max = row_max[i];
#pragma unroll
      for (int j = 0; j < KEYS; ++j) {
        if (lane + j * LANES >= limit[i]) s[i][j] = minus_infinity(ACC());
        new_max = s[i][j] > new_max ? s[i][j] : new_max;
      }
#pragma unroll
      for (int offset = LANES / 2; offset > 0; offset /= 2) {
        const ACC other = __shfl_xor_sync(0xffffffffu, new_max, offset);
        new_max = other > new_max ? other : new_max;
      }
      // While a row has seen nothing above -inf its weights are zero, not exp(-inf + inf).
      const ACC shift = new_max == minus_infinity(ACC()) ? ACC(0) : new_max;
      const ACC rescale = exponential(row_max[i] - shift, scale);
      row_max[i] = new_max;
      row_sum[i] *= rescale;
#pragma unroll
      for (int j = 0; j < KEYS; ++j) {
        const ACC p = exponential(s[i][j] - shift, scale);
        row_sum[i] += p;
        p_smem[(lane + j * LANES) * ROWS + i] = p;
      }
#pragma unroll
      for (int c = 0; c < CHUNKS_PER_LANE; ++c)
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) o[i][c][e] *= rescale;
    }
    __syncwarp();
    accumulate_values<false, Output>(o, p_smem, smem.v, key_split, shortest, limit, first_chunk);
    if (ROWS > 1 && longest > shortest) {
      // The first key from `shortest` on that is this lane's.
      const int resume = shortest + (key_split + LANES - shortest % KEY_SPLITS) % KEY_SPLITS;
      accumulate_values<true, Output>(o, p_smem, smem.v, resume, longest, limit, first_chunk);
    }
    __syncwarp();  // p_smem is free again
  }

  OUT* out = static_cast<OUT*>(params.out);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    ACC sum = row_sum[i];
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    // No keys at all: the empty sum is zero, not 0 / 0.
    const ACC normalise = params.seqlen_k == 0 ? ACC(0) : ACC(1) / sum;
#pragma unroll
    for (int c = 0; c < CHUNKS_PER_LANE; ++c)
#pragma unroll
      for (int e = 0; e < CHUNK; ++e) {
#pragma unroll
        for (int offset = Output::CHUNK_LANES; offset < LANES; offset *= 2)
          o[i][c][e] += __shfl_xor_sync(0xffffffffu, o[i][c][e], offset);
        o[i][c][e] *= normalise;
      }

    const int row = row_group + i * ROW_GROUPS;
    if (row >= rows_here || key_split != 0) continue;
    const uint64_t packed = first_row + row;
    const int64_t time = packed / GROUP_SIZE;
    const int64_t head = kv_head * GROUP_SIZE + packed % GROUP_SIZE;
    OUT* out_row = out + ((batch * params.seqlen_q + time) * params.num_heads + head) * HEAD_DIM;
#pragma unroll
    for (int c = 0; c < CHUNKS_PER_LANE; ++c) {
      const int dim = (first_chunk + c * Output::CHUNK_LANES) * CHUNK;
      if (dim >= HEAD_DIM) break;
      if constexpr (HEAD_DIM % CHUNK == 0) {
        Vec4<OUT> value;
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) value.x[e] = from_accumulator<OUT>(o[i][c][e]);
        store_vector(out_row + dim, value);
      } else {
#pragma unroll
        for (int e = 0; e < CHUNK; ++e)
          if (dim + e < HEAD_DIM) out_row[dim + e] = from_accumulator<OUT>(o[i][c][e]);
      }
    }
  }
}

// Longest rows first: the short ones fill the gaps at the end. With SKIPS_FINISHED a block takes several row
// blocks and leaves out what another kernel has written; without it is shorter and needs fewer registers.
template <typename T, typename OUT, bool SCALED, int HEAD_DIM, int GROUP_SIZE, bool SKIPS_FINISHED>
__global__ void __launch_bounds__(Tile<typename AccumulatorOf<T>::type, HEAD_DIM>::THREADS, 1)
    portable_attention_kernel(const __grid_constant__ AttentionParams params,
                              const __grid_constant__ LaunchArguments<typename AccumulatorOf<T>::type> arguments) {
  using TILE = Tile<typename AccumulatorOf<T>::type, HEAD_DIM>;
  constexpr int BLOCK_M = TILE::BLOCK_M;
  if constexpr (SKIPS_FINISHED && STARTS_EARLY) ptx::wait_for_previous_kernel();
  const int64_t kv_head = arguments.first_kv_head + static_cast<int>(blockIdx.y);
  const int64_t batch = arguments.first_batch + static_cast<int>(blockIdx.z);
  if constexpr (!SKIPS_FINISHED) {
    const int64_t first_row = static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * BLOCK_M;
    attend_rows<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE>(params, arguments, first_row, kv_head, batch);
    return;
  }
  const int64_t row_blocks = (params.seqlen_q * GROUP_SIZE + BLOCK_M - 1) / BLOCK_M;
  const FinishedRows& others = arguments.others;
  const auto is_finished = [&](int64_t row_block) {
    return others.finished != nullptr &&
           others.finished[(batch * params.num_kv_heads + kv_head) * others.tiles +
                           row_block * BLOCK_M / others.rows] != 0;
  };
  if (others.finished != nullptr) {  // mostly all are: every thread looks at some
    bool is_left = false;
    for (int64_t i = blockIdx.x + static_cast<int64_t>(threadIdx.x) * gridDim.x; i < row_blocks;
         i += TILE::THREADS * gridDim.x)
      is_left = is_left || !is_finished(row_blocks - 1 - i);
    if (!__syncthreads_or(is_left)) return;
  }
  for (int64_t row_block = row_blocks - 1 - blockIdx.x; row_block >= 0; row_block -= gridDim.x) {
    if (is_finished(row_block)) continue;
    attend_rows<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE>(params, arguments, row_block * BLOCK_M, kv_head, batch);
    __syncthreads();  // shared memory is free again
  }
}

// Calls launch(grid, first_kv_head, first_batch) until every (kv head, batch) is covered: once,
// unless there are more of either than a grid's second and third dimension hold.
template <typename LAUNCH>
cudaError_t launch_chunks(const AttentionParams& params, int64_t row_blocks, LAUNCH launch) {
  constexpr int64_t GRID_LIMIT = 65535;
  for (int64_t batch = 0; batch < params.batch; batch += GRID_LIMIT)
    for (int64_t head = 0; head < params.num_kv_heads; head += GRID_LIMIT) {
      const int64_t batches = params.batch - batch < GRID_LIMIT ? params.batch - batch : GRID_LIMIT;
      const int64_t heads = params.num_kv_heads - head < GRID_LIMIT ? params.num_kv_heads - head : GRID_LIMIT;
      const dim3 grid(static_cast<unsigned>(row_blocks), static_cast<unsigned>(heads), static_cast<unsigned>(batches));
      const cudaError_t error = launch(grid, static_cast<int>(head), static_cast<int>(batch));
      if (error != cudaSuccess) return error;
    }
  return cudaSuccess;
}

// Whether the rows of a tensor can be read CHUNK elements at a time.
template <typename T, int HEAD_DIM>
bool rows_are_vectors(const void* data, const int64_t (&stride)[4]) {
  return HEAD_DIM % CHUNK == 0 && stride[3] == 1 && (stride[0] | stride[1] | stride[2]) % CHUNK == 0 &&
         reinterpret_cast<uintptr_t>(data) % alignof(Vec4<T>) == 0;
}

template <typename T, typename OUT, bool SCALED, int HEAD_DIM, int GROUP_SIZE, bool SKIPS_FINISHED = false>
struct PortableKernel {
  using ACC = typename AccumulatorOf<T>::type;
  using TILE = Tile<ACC, HEAD_DIM>;
  using Smem = SharedMemory<ACC, HEAD_DIM>;
  static constexpr auto FUNCTION = portable_attention_kernel<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE, SKIPS_FINISHED>;
  static_assert(sizeof(Smem) <= 64 * 1024, "shared memory must fit the smallest supported GPU (sm_75: 64 KiB)");

  // Loads the kernel on the current device. After this a launch may be captured in a graph.
  static cudaError_t prepare() {
    return cudaFuncSetAttribute(FUNCTION, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Smem));
  }

  static cudaError_t launch(const AttentionParams& params, cudaStream_t stream, const FinishedRows& others = {}) {
    LaunchArguments<ACC> arguments = {};
    arguments.others = others;
    arguments.exponent_scale = exponent_scale(params.softmax_scale, ACC());
    arguments.q_vectors = rows_are_vectors<T, HEAD_DIM>(params.q, params.q_stride);
    arguments.k_vectors = rows_are_vectors<T, HEAD_DIM>(params.k, params.k_stride);
    arguments.v_vectors = rows_are_vectors<T, HEAD_DIM>(params.v, params.v_stride);
    int64_t row_blocks = (params.seqlen_q * GROUP_SIZE + TILE::BLOCK_M - 1) / TILE::BLOCK_M;
    if (others.finished != nullptr) {  // seldom is anything left: a few blocks for each SM look
      const int64_t enough = 1024 / (params.batch * params.num_kv_heads) + 1;
      row_blocks = row_blocks < enough ? row_blocks : enough;
    }
    return launch_chunks(params, row_blocks, [&](dim3 grid, int first_kv_head, int first_batch) {
      arguments.first_kv_head = first_kv_head;
      arguments.first_batch = first_batch;
      if constexpr (SKIPS_FINISHED && STARTS_EARLY) {
        return launch_early<FUNCTION>(grid, TILE::THREADS, static_cast<int>(sizeof(Smem)), stream, params, arguments);
      } else {
        FUNCTION<<<grid, TILE::THREADS, sizeof(Smem), stream>>>(params, arguments);
        return cudaGetLastError();
      }
    });
  }
};

}  // namespace attention
