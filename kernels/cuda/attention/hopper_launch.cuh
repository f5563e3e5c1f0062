// The host's side of the Hopper attention kernel: its workspace, its three launches, and which calls it serves.
// The kernel: hopper.cuh; what it leaves to others: attention.cuh.
#pragma once

#include "cuda/attention/attention.cuh"
#include "cuda/attention/hopper.cuh"
#include "cuda/attention/tensor.cuh"

namespace attention {

template <typename T, typename OUT, bool SCALED, bool FAST, int HEAD_DIM, int GROUP_SIZE>
struct HopperKernel {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  using Smem = HopperMemory<T, SCALED, FAST, HEAD_DIM>;
  using Portable = PortableKernel<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE, true>;
  static constexpr auto FUNCTION = hopper_attention_kernel<T, OUT, SCALED, FAST, HEAD_DIM, GROUP_SIZE>;
  static constexpr auto SPLIT = split_kernel<T, SCALED, FAST, HEAD_DIM>;
  static_assert(!SCALED || (GROUP_SIZE == 1 && sizeof(OUT) == 4), "the scales of a head are its own, and O is fp32");
  static_assert(Smem::BYTES <= Smem::LIMIT, "shared memory must fit one block on an SM");
  static_assert(TILE::BLOCK_M / 2 % Portable::TILE::BLOCK_M == 0, "a portable block must lie in one half");

  // Loads the kernels on the current device. After this a launch may be captured in a graph.
  static cudaError_t prepare() {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, SPLIT);
    if (error != cudaSuccess) return error;
    return cudaFuncSetAttribute(FUNCTION, cudaFuncAttributeMaxDynamicSharedMemorySize, Smem::BYTES);
  }

  static int64_t seen_keys(const AttentionParams& p) { return p.seqlen_k < p.seqlen_q ? p.seqlen_k : p.seqlen_q; }
  static int64_t kv_tiles(const AttentionParams& p) { return (seen_keys(p) + TILE::BLOCK_N - 1) / TILE::BLOCK_N; }
  static int64_t row_tiles(const AttentionParams& p) {
    return (p.seqlen_q * GROUP_SIZE + TILE::BLOCK_M - 1) / TILE::BLOCK_M;
  }

  static bool serves(const AttentionParams& p) {
    constexpr int64_t LIMIT = int64_t(1) << 30;
    const int64_t heads = p.batch * p.num_kv_heads;
    return p.seqlen_k > 0 && p.seqlen_q * GROUP_SIZE < LIMIT && kv_tiles(p) * heads < LIMIT && row_tiles(p) * heads < LIMIT;
  }

  // The tiles, 2 * 2 * PARTS * PADDED bytes a key of a kv head (head_dim 128 in fp32: as many as K and V), their scales,
  // and a byte for each row tile.
  static int64_t workspace_bytes(const AttentionParams& p) {
    const int64_t heads = p.batch * p.num_kv_heads;
    return heads * (kv_tiles(p) * (TILE::K_BYTES + TILE::V_BYTES + static_cast<int64_t>(sizeof(TileScale))) + 2 * row_tiles(p)) + 16;
  }

  // `workspace`: workspace_bytes() aligned to 128.
  static cudaError_t launch(const AttentionParams& p, void* workspace, cudaStream_t stream) {
    const int64_t heads = p.batch * p.num_kv_heads;
    unsigned char* tiles = static_cast<unsigned char*>(workspace);
    TileScale* scales = reinterpret_cast<TileScale*>(tiles + heads * kv_tiles(p) * (TILE::K_BYTES + TILE::V_BYTES));
    int* next_job = reinterpret_cast<int*>(scales + heads * kv_tiles(p));
    unsigned char* finished = reinterpret_cast<unsigned char*>(next_job + 4);
    int device = 0, processors = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;

    SplitArguments split = {};
    split.k = p.k;
    split.v = p.v;
    for (int i = 0; i < 4; ++i) {
      split.k_stride[i] = p.k_stride[i];
      split.v_stride[i] = p.v_stride[i];
    }
    split.k_vectors = rows_are_vectors<T, HEAD_DIM>(p.k, p.k_stride);
    split.v_vectors = rows_are_vectors<T, HEAD_DIM>(p.v, p.v_stride);
    split.seqlen_k = static_cast<int>(seen_keys(p));
    split.num_kv_heads = static_cast<int>(p.num_kv_heads);
    split.kv_tiles = static_cast<int>(kv_tiles(p));
    split.tiles = tiles;
    split.scales = scales;
    split.next_job = next_job;
    const dim3 split_grid(static_cast<unsigned>(heads * kv_tiles(p) * 2));
    constexpr int SPLIT_THREADS = SplitLaunch<T, SCALED, FAST, HEAD_DIM>::THREADS;
    if constexpr (STARTS_EARLY) {
      error = launch_early<SPLIT>(split_grid, SPLIT_THREADS, 0, stream, split);
    } else {
      SPLIT<<<split_grid, SPLIT_THREADS, 0, stream>>>(split);
      error = cudaGetLastError();
    }
    if (error != cudaSuccess) return error;

    HopperArguments a = {};
    a.q = p.q;
    for (int i = 0; i < 4; ++i) a.q_stride[i] = p.q_stride[i];
    a.q_vectors = rows_are_vectors<T, HEAD_DIM>(p.q, p.q_stride);
    a.seqlen_q = static_cast<int>(p.seqlen_q);
    a.seqlen_k = split.seqlen_k;
    a.num_kv_heads = split.num_kv_heads;
    a.heads = static_cast<int>(heads);
    a.row_tiles = static_cast<int>(row_tiles(p));
    a.kv_tiles = split.kv_tiles;
    constexpr int64_t SECTION_BYTES = 24 << 20;  // half of an H100's or H200's L2
    const int64_t fit = SECTION_BYTES / (kv_tiles(p) * (TILE::K_BYTES + TILE::V_BYTES));
    a.heads_in_section = static_cast<int>(fit < 1 ? 1 : fit < heads ? fit : heads);
    a.jobs = a.heads * a.row_tiles;
    a.jobs_in_section = a.heads_in_section * a.row_tiles;
    a.exponent_scale = exponent_scale(p.softmax_scale * (1 + TILE::CUT_OFF), 0.0f);
    a.tiles = tiles;
    a.scales = scales;
    a.next_job = next_job;
    a.finished = finished;
    a.out = p.out;
    if (SCALED) a.scales_of_heads = ScaleArguments::from(p);
    const dim3 grid(static_cast<unsigned>(a.jobs < processors ? a.jobs : processors));
    error = launch_early<FUNCTION>(grid, 384, Smem::BYTES, stream, a);
    if (error != cudaSuccess) return error;
    return Portable::launch(p, stream, {finished, TILE::BLOCK_M / 2, 2 * row_tiles(p)});
  }
};

// The kernels of one specialisation on Hopper, and which of them serves a call: by shape and layout, never by batch.
template <typename T, typename OUT, bool SCALED, bool FAST, int HEAD_DIM, int GROUP_SIZE>
struct HopperAttention {
  using Others = Attention<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE, true>;  // one portable kernel for both uses
  using Hopper = HopperKernel<T, OUT, SCALED, FAST, HEAD_DIM, GROUP_SIZE>;
  using Tensor = TensorKernel<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE, false>;
  static_assert(ARCH == 900, "wgmma exists on sm_90a alone");
  static constexpr bool HAS_TENSOR = HEAD_DIM % CHUNK == 0 && HEAD_DIM <= 128;  // wider rows take more than its registers
  // Up to here one launch without a workspace takes less time than three (gqa_attn/README.md has the measurements).
  static constexpr int64_t MAX_TENSOR_SEQLEN = sizeof(T) == 2 && !SCALED ? 96 : 64;
  // Fewer steps are one of the others' in less time (gqa_attn/README.md has the measurement).
  static constexpr int64_t MIN_SEQLEN = 48;

  static int32_t prepare() {
    cudaError_t error = Hopper::prepare();
    if constexpr (HAS_TENSOR) {
      if (error == cudaSuccess) error = Tensor::prepare();
    }
    return error == cudaSuccess ? Others::prepare() : error;
  }

  static int32_t launch(const AttentionParams& params, void* stream) {
    if constexpr (Others::HAS_SHORT) {
      if (ShortKernel<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE>::serves(params)) return Others::launch(params, stream);
    }
    if constexpr (HAS_TENSOR) {
      if (params.seqlen_q <= MAX_TENSOR_SEQLEN && Tensor::serves(params))
        return Tensor::launch(params, static_cast<cudaStream_t>(stream));
    }
    if (params.seqlen_q < MIN_SEQLEN || !Hopper::serves(params)) return Others::launch(params, stream);
    void* workspace = params.allocate(params.allocator, Hopper::workspace_bytes(params));
    if (workspace == nullptr) return cudaErrorMemoryAllocation;
    return Hopper::launch(params, workspace, static_cast<cudaStream_t>(stream));
  }
};

}  // namespace attention
