// Causal grouped-query attention forward for Hopper: tensor cores (wgmma) at fp32 accuracy.
//
// Algorithm
//   A job is BLOCK_M = 128 packed query rows of one (batch, kv head) (see portable.cuh for the packing);
//   each of two consumer warpgroups has 64 of them. hopper_split.cuh has written K and V as tiles of
//   scaled fp16 parts; a consumer splits its rows of Q the same way, a power of two for each row. Then for
//   each tile of BLOCK_N keys S = Q K^T and O += P V, each fp32 product as three fp16 products, lo * hi +
//   hi * lo + hi * hi, with a running maximum and sum. 16-bit inputs are one part: one product for S, two
//   for P V while a row has few weights of size, then one. SCALED (fp8_attn): 8-bit inputs are one part too, and
//   int8 stays int8 in S = Q K^T; P has two parts throughout. FAST: one part of everything.
//
// Shapes and dtypes
//   As in portable.cuh, HEAD_DIM up to 256, T not double; 8-bit types only where SCALED.
//
// Layout (shared memory)
//   Q_BUFFERS of q [PARTS][SLABS][BLOCK_M][64], BUFFERS tiles of K or V as hopper_split.cuh lays them out,
//   then what HopperShared lists.
//
// Requires
//   sm_90a. Any strides. seqlen_q * GROUP_SIZE, the jobs and the tiles below 2^30 each. Workspace: see
//   workspace_bytes() in hopper_launch.cuh.
//
// Launch
//   a block for each SM, or for each job where there are fewer; 3 warpgroups. Blocks take jobs from a
//   counter, by sections of heads whose tiles fit in half of L2, in each the longest rows first, and none
//   before the job at hand has begun.
//
// Pipeline (items of a ring of buffers: K0, K1, V0, K2, V1, ..., V last)
//   loading warps   wait q_empty_bar | copy 64 rows of Q, look for tiles that cannot be used -> q_full_bar
//   copying thread  wait copy_full_bar for a job, empty_bar | announce bytes, copy item -> full_bar
//   consumer        wait q_full_bar | split Q | then for each tile
//                   wait full_bar K j+1 | issue S j+1 | wait full_bar V j | issue P j V j
//                   wait for S j+1 -> empty_bar | its maximum, exponentials and sum
//                   wait for P V -> empty_bar | add it to O, rescale | split P j+1
//                   (after the last exponentials -> q_empty_bar)
//
// Numerics
//   The low-order products are issued first: the tensor cores cut off bits at each step. What they cut off of S at fp32
//   is made up for in the softmax scale (TILE::CUT_OFF), and S is two sums beyond HEAD_DIM 128. P V starts
//   from zero for each tile and is added to O in fp32, for the same reason (16-bit outputs and FAST: O
//   stays in the tensor cores). The maximum is subtracted before the scale is multiplied in; where O stays in the
//   tensor cores an exponent is one multiply-add, S times a factor plus the row's shift, which was rounded, but is the
//   same for all weights of a row. Weights are at 2^12 when they are split, and the maximum follows S only when that
//   has grown by 2^3, or O would be rescaled at most tiles. Scales are powers of two and undone exactly: K's and
//   Q's in the softmax scale, V's when P V is added. Masked keys are set to -inf before the maximum;
//   key 0 is in the first tile and visible to every row, so a maximum is always finite.
//   SCALED: the scales of q and k are multiplied into the softmax scale, their sign into Q, that of v into the last
//   division. FAST: 11 bits of every operand and weight, as of half precision; int8 S stays exact.
//   Where a tile of K or V that a job reads cannot be split, or a row of Q, or where a scale is zero, not a
//   number or far from one, or where a row's shift is beyond 2^24, the warpgroup leaves its 64 rows to the
//   portable kernel, which is launched after this one and returns at once elsewhere. Rows
//   among the 64 that do not see the key in question are then also the portable kernel's.
//   Fixed order throughout: bitwise the same on repeat and inside any batch.
//
// Work
//   As in portable.cuh; three tensor-core products for each one at fp32. Memory beyond that: the tiles,
//   written once and read from L2 by the jobs of a head.
//
// Versus
//   portable.cuh: 22 to 101 TFLOP/s at fp32, batch 8, length 512, heads 32/8, head_dim 128 (one H200,
//   2026-11-30); the versions between are in gqa_attn/README.md.
//
// References
//   PTX ISA, wgmma (fragments, shared-memory matrix layouts), mbarrier, cp.async.bulk.
//   Dao et al., FlashAttention (2022), section 3; Ootomo and Yokota (2022), fp32 products from fp16 parts.
#pragma once

#include "cuda/attention/hopper_block.cuh"
#include "cuda/attention/hopper_consumer.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/dependent_launch.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace attention {

template <typename T, int GROUP_SIZE>
__device__ __forceinline__ PackedRows<T, GROUP_SIZE> query_rows(const HopperArguments& a, const HopperJob& job, int half_rows) {
  return {static_cast<const T*>(a.q) + job.batch * a.q_stride[0] + static_cast<int64_t>(job.kv_head) * GROUP_SIZE * a.q_stride[2],
          job.first_row + half_rows, a.q_stride[1], a.q_stride[2], a.q_stride[3], a.q_vectors};
}

// The three warps that have Q copied: takes jobs and hands them on.
template <typename T, bool SCALED, bool FAST, int HEAD_DIM, int GROUP_SIZE>
__device__ __forceinline__ void hand_out_jobs(const HopperArguments& arguments, const HopperShared<T, SCALED, FAST, HEAD_DIM>& smem,
                                              int thread) {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  using Smem = HopperMemory<T, SCALED, FAST, HEAD_DIM>;
  using Queries = HopperQueries<T, SCALED, FAST, HEAD_DIM>;
#pragma unroll 1
  for (unsigned turn = 0;; ++turn) {
    HopperJob& here = smem.copy_job();
    if (thread == 0) {
      // No job is taken before the one before it has begun, or blocks could run dry while others have two to come.
      ptx::barrier_wait(smem.copy_empty_bar(), turn % 2 ^ 1);
      const int job = turn == 0 ? blockIdx.x : gridDim.x + atomicAdd(arguments.next_job, 1);
      here = HopperJob::numbered<GROUP_SIZE, TILE::BLOCK_M, TILE::BLOCK_N>(job, arguments);
      ptx::barrier_arrive(smem.copy_full_bar());
    }
    ptx::sync_threads<LOADER_THREADS>(LOADER_BAR);
    if (Smem::Q_BUFFERS == 1 && turn > 0 && here.kind == HopperJob::OURS && arguments.q_vectors) {
      // Halfway already, while the rows before are in use.
      constexpr int LINES = (HEAD_DIM * static_cast<int>(sizeof(T)) + 127) / 128;
      const PackedRows<T, GROUP_SIZE> rows = query_rows<T, GROUP_SIZE>(arguments, here, 0);
#pragma unroll 1
      for (int i = thread; i < here.rows_here * LINES; i += LOADER_THREADS)
        ptx::prefetch_to_l2(rows.row(i / LINES) + i % LINES * (128 / sizeof(T)));
    }
    // Whether the tiles are of use. They are there once the kernel before this one has ended.
    const auto check = [&] {
      bool is_bad = false;
      if (here.kind == HopperJob::NONE) return is_bad;
      if (turn == 0) ptx::wait_for_previous_kernel();
      if constexpr (SCALED) {
        const HeadScales of_head = arguments.scales_of_heads.of(here.kv_head);
        is_bad = !is_usable(of_head.q, of_head.k, of_head.v);
      }
      const TileScale* scales = arguments.scales + static_cast<int64_t>(here.head) * arguments.kv_tiles;
#pragma unroll 1
      for (int i = thread; !IS_INTEGER<T> && i < here.num_tiles; i += LOADER_THREADS)
        is_bad = is_bad || !scales[i].is_good();
      return ptx::any_of<LOADER_THREADS>(LOADER_BAR, is_bad);
    };
    const int q_buffer = turn % Smem::Q_BUFFERS;
    const auto copy = [&](int half) {
      ptx::barrier_wait(smem.q_empty_bar(q_buffer, half), turn / Smem::Q_BUFFERS % 2 ^ 1);
      const int rows_here = min(Queries::ROWS, max(0, here.rows_here - half * Queries::ROWS));
      Queries::template copy<LOADER_THREADS>(smem.q(q_buffer) + half * Queries::ROWS * TILE::ROW_BYTES,
                                             query_rows<T, GROUP_SIZE>(arguments, here, half * Queries::ROWS),
                                             here.kind == HopperJob::NONE ? -1 : rows_here, thread);
    };
    const auto hand_out = [&](int half, bool is_bad) {
      ptx::Barrier* bar = smem.q_full_bar(q_buffer, half);
      Queries::arrive_after_copies(arguments.q_vectors, bar);
      if (thread != 0) return;
      HopperJob& for_consumers = smem.job(turn, half);
      for_consumers = here;
      if (is_bad) for_consumers.kind = HopperJob::LEFT;
      ptx::barrier_arrive(bar);
    };
    const bool is_first = turn == 0;  // all of Q is under way before anything waits for the tiles
    bool is_bad = !is_first && check();
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      copy(half);
      if (!is_first) hand_out(half, is_bad);
    }
    if (is_first) {
      is_bad = check();
#pragma unroll 1
      for (int half = 0; half < 2; ++half) hand_out(half, is_bad);
    }
    if (here.kind == HopperJob::NONE) return;
    ptx::sync_threads<LOADER_THREADS>(LOADER_BAR);  // none needs `here` any more
  }
}

// The one thread that has K and V copied.
template <typename T, bool SCALED, bool FAST, int HEAD_DIM>
__device__ __forceinline__ void copy_tiles(const HopperArguments& arguments, const HopperShared<T, SCALED, FAST, HEAD_DIM>& smem) {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  using Smem = HopperMemory<T, SCALED, FAST, HEAD_DIM>;
  Ring<Smem::BUFFERS> ring;
  ptx::wait_for_previous_kernel();  // the tiles are there
#pragma unroll 1
  for (unsigned turn = 0;; ++turn) {
    ptx::barrier_wait(smem.copy_full_bar(), turn % 2);
    const HopperJob here = smem.copy_job();
    ptx::barrier_arrive(smem.copy_empty_bar());
    if (here.kind == HopperJob::NONE) return;
    const int64_t first_tile = static_cast<int64_t>(here.head) * arguments.kv_tiles;
#pragma unroll 1
    for (int item = 0; item < 2 * here.num_tiles; ++item) {
      // K0, K1, V0, K2, V1, ..., V last
      const bool is_v = item > 0 && (item % 2 == 0 || item == 2 * here.num_tiles - 1);
      const int tile = item % 2 == 0 ? (is_v ? item / 2 - 1 : 0) : (item + (is_v ? 0 : 1)) / 2;
      ptx::barrier_wait(smem.empty_bar(ring.buffer), ring.parity ^ 1);
      ptx::Barrier* bar = smem.full_bar(ring.buffer);
      const int bytes = is_v ? TILE::V_BYTES : TILE::K_BYTES;
      ptx::barrier_arrive_expecting(bar, bytes);
      ptx::bulk_copy(smem.tile(ring.buffer), arguments.tiles + TILE::offset(first_tile + tile, is_v), bytes, bar);
      ring.next();
    }
  }
}

// A consumer warp's way past `count` items that it does not need.
template <typename T, bool SCALED, bool FAST, int HEAD_DIM>
__device__ __forceinline__ void skip(const HopperShared<T, SCALED, FAST, HEAD_DIM>& smem, Ring<HopperMemory<T, SCALED, FAST, HEAD_DIM>::BUFFERS>& ring,
                                     int count) {
#pragma unroll 1
  for (; count > 0; --count) {
    ptx::barrier_wait(smem.full_bar(ring.buffer), ring.parity);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(smem.empty_bar(ring.buffer));
    ring.next();
  }
}

// Where it is noted whether a consumer warpgroup's rows are written.
__device__ __forceinline__ unsigned char* finished_place(const HopperArguments& arguments, const HopperJob& job, int half) {
  return &arguments.finished[(static_cast<int64_t>(job.head) * arguments.row_tiles + job.row_tile) * 2 + half];
}

// Splits a consumer warpgroup's rows of Q; returns whether they are for it, and leaves word for the portable kernel.
template <typename T, bool SCALED, bool FAST, int HEAD_DIM>
__device__ __forceinline__ bool split_rows(const HopperArguments& arguments, const HopperShared<T, SCALED, FAST, HEAD_DIM>& smem,
                                           unsigned turn) {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  using Smem = HopperMemory<T, SCALED, FAST, HEAD_DIM>;
  using Queries = HopperQueries<T, SCALED, FAST, HEAD_DIM>;
  const int half = threadIdx.x / 128 - 1;
  const HopperJob& here = smem.job(turn, half);
  bool is_left = here.kind == HopperJob::LEFT;
  if constexpr (!TILE::IS_DIRECT) {
    float head_factor = 1.0f;
    if constexpr (SCALED) {
      const HeadScales of_head = arguments.scales_of_heads.of(here.kv_head);
      head_factor = of_head.q * of_head.k;
    }
    const int q_buffer = turn % Smem::Q_BUFFERS;
    const bool is_bad = Queries::split(smem.q(q_buffer) + half * Queries::ROWS * TILE::ROW_BYTES,
                                       smem.q_scale(q_buffer) + half * Queries::ROWS,
                                       here.rows_here - half * Queries::ROWS, head_factor);
    ptx::async_proxy_fence();
    is_left = ptx::any_of<128>(CONSUMER_BAR + half, is_left || is_bad);
  }
  if (threadIdx.x % 128 == 0) *finished_place(arguments, here, half) = !is_left;
  return !is_left;
}

// A job whose rows are left to the portable kernel.
template <typename T, bool SCALED, bool FAST, int HEAD_DIM>
__device__ __forceinline__ void pass_over(const HopperShared<T, SCALED, FAST, HEAD_DIM>& smem, unsigned turn,
                                          Ring<HopperMemory<T, SCALED, FAST, HEAD_DIM>::BUFFERS>& ring) {
  using Smem = HopperMemory<T, SCALED, FAST, HEAD_DIM>;
  const int half = threadIdx.x / 128 - 1;
  const int items = 2 * smem.job(turn, half).num_tiles;
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::barrier_arrive(smem.q_empty_bar(turn % Smem::Q_BUFFERS, half));
  skip(smem, ring, items);
}

// One consumer warpgroup's share of a job.
template <typename T, typename OUT, bool SCALED, bool FAST, int HEAD_DIM, int GROUP_SIZE>
__device__ __forceinline__ void attend(const HopperArguments& arguments, const HopperShared<T, SCALED, FAST, HEAD_DIM>& smem,
                                       unsigned& turn, Ring<HopperMemory<T, SCALED, FAST, HEAD_DIM>::BUFFERS>& ring) {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  using Smem = HopperMemory<T, SCALED, FAST, HEAD_DIM>;
  using Consumer = HopperConsumer<T, SCALED, FAST, HEAD_DIM>;
  constexpr int BLOCK_N = TILE::BLOCK_N;
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128 - 1, 0);  // known to be uniform
  const HopperJob& here = smem.job(turn, warpgroup);
  const int lane = threadIdx.x % 32;
  const int row_in_tile = threadIdx.x / 32 * 16 - 64 + lane / 4;  // this lane has it and the eighth after it
  const uint32_t q_address = ptx::shared_address(smem.q(turn % Smem::Q_BUFFERS)) + warpgroup * 64 * TILE::ROW_BYTES;
  const uint32_t tile_address = ptx::shared_address(smem.tile(0));
  const auto release = [&](ptx::Barrier* bar) {
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(bar);
  };
  // From L2, with a product or two under way: a second copy for each tile would cost more.
  const auto tile_scale = [&](int tile) {
    if constexpr (TILE::IS_EXACT) return TileScale{1, 1, 1, 1};
    asm volatile("" : "+r"(turn));  // read again, so that registers are free elsewhere
    const int64_t first_tile = static_cast<int64_t>(smem.job(turn, warpgroup).head) * arguments.kv_tiles;
    const float4 found = __ldcg(reinterpret_cast<const float4*>(arguments.scales + first_tile + tile));
    return TILE::IS_DIRECT ? TileScale{1, 1, found.z, found.w} : TileScale{found.x, found.y, found.z, found.w};
  };
  // Rows past the last keep the last one's keys; they are not stored.
  const int first_row = here.first_row + warpgroup * 64;
  const int last_time = min((first_row + 63) / GROUP_SIZE, arguments.seqlen_q - 1);
  const int my_tiles = min(here.num_tiles, (min(last_time + 1, arguments.seqlen_k) + BLOCK_N - 1) / BLOCK_N);
  const int seen_by_all = min(first_row / GROUP_SIZE + 1, arguments.seqlen_k);
  Consumer c;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    c.row_max[half] = Consumer::PROMOTE ? minus_infinity(0.0f) : -minus_infinity(0.0f);
    c.row_sum[half] = 0;
    if constexpr (Consumer::LOW_IS_OPTIONAL) c.row_square[half] = 0;
  }
#pragma unroll
  for (int block = 0; block < Consumer::COLUMN_BLOCKS; ++block)
#pragma unroll
    for (int i = 0; i < Consumer::COLUMNS / 2; ++i) c.o[block][i] = 0;
  float partial[Consumer::PROMOTE ? Consumer::COLUMNS / 2 : 1];
  float rescale[2];

  TileScale scale = tile_scale(0);
  ptx::barrier_wait(smem.full_bar(ring.buffer), ring.parity);
  ptx::wgmma_fence();
  c.issue_scores(q_address, tile_address + ring.buffer * Smem::BUFFER_BYTES);
  ptx::wgmma_wait<0>();
  c.take_scores();
  release(smem.empty_bar(ring.buffer));
  ring.next();
  const auto exponentials = [&](bool is_last) {
    if constexpr (TILE::IS_DIRECT) {
      c.exponentials({arguments.exponent_scale, arguments.exponent_scale}, scale, rescale);
    } else {
      int thread = threadIdx.x;
      asm volatile("" : "+r"(thread), "+r"(turn));  // worked out again, so that registers are free elsewhere
      const float* q_scale = smem.q_scale(turn % Smem::Q_BUFFERS) + (thread / 32 * 16 - 64 + thread % 32 / 4);
      c.exponentials({arguments.exponent_scale * q_scale[0], arguments.exponent_scale * q_scale[8]}, scale, rescale);
    }
    // Sums are never below zero. That they are asked for keeps the exponentials here: in float32 the compiler put them
    // off until P V was done, which they should run beside.
    if (is_last || (TILE::PARTS == 2 && c.row_sum[0] + c.row_sum[1] < 0))
      release(smem.q_empty_bar(turn % Smem::Q_BUFFERS, threadIdx.x / 128 - 1));
  };
  const auto mask = [&](int first_key) {
    if (seen_by_all >= first_key + BLOCK_N) return;
    asm volatile("" : "+r"(turn));  // read again, so that the registers are free elsewhere
    const int first_row = smem.job(turn, warpgroup).first_row;
    int limit[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + row_in_tile + half * 8;
      limit[half] = min(row / GROUP_SIZE + 1, arguments.seqlen_k) - first_key;
    }
    c.mask(limit);
  };
  mask(0);
  exponentials(my_tiles == 1);

  const auto issue_values = [&](uint32_t v_address, auto with_low) {
    ptx::wgmma_fence();
    if constexpr (Consumer::PROMOTE) {
      c.template issue_values<true>(partial, v_address, 0);
    } else {
#pragma unroll
      for (int block = 0; block < Consumer::COLUMN_BLOCKS; ++block)
        c.template issue_values<decltype(with_low)::VALUE>(c.o[block], v_address, block);
    }
  };
  // Adds P V of the tile at `v_address` to O, once issue_values() has begun it.
  const auto add_values = [&](uint32_t v_address, float v_inverse) {
    ptx::wgmma_wait<0>();
    if constexpr (Consumer::PROMOTE) {
#pragma unroll
      for (int block = 0; block < Consumer::COLUMN_BLOCKS; ++block) {
        if (block > 0) {
          ptx::wgmma_fence();
          c.template issue_values<true>(partial, v_address, block);
          ptx::wgmma_wait<0>();
        }
        ptx::hold(partial);
#pragma unroll
        for (int i = 0; i < Consumer::COLUMNS / 2; ++i) c.o[block][i] += partial[i] * v_inverse;
      }
    } else {
#pragma unroll
      for (int block = 0; block < Consumer::COLUMN_BLOCKS; ++block) ptx::hold(c.o[block]);
    }
  };
  // No product may be under way where the code branches on whether P's second part matters.
  const auto step = [&](int tile, auto with_low) {
    const Ring<Smem::BUFFERS> k_place = ring;
    ring.next();
    const Ring<Smem::BUFFERS> v_place = ring;
    ring.next();
    const uint32_t v_address = tile_address + v_place.buffer * Smem::BUFFER_BYTES;
    const float v_inverse = scale.v_inverse;
    ptx::barrier_wait(smem.full_bar(k_place.buffer), k_place.parity);
    c.hold_scores();
    ptx::wgmma_fence();
    c.issue_scores(q_address, tile_address + k_place.buffer * Smem::BUFFER_BYTES);
    ptx::barrier_wait(smem.full_bar(v_place.buffer), v_place.parity);
    issue_values(v_address, with_low);
    scale = tile_scale(tile);
    ptx::wgmma_wait<(Consumer::PROMOTE ? 1 : Consumer::COLUMN_BLOCKS)>();
    c.take_scores();
    release(smem.empty_bar(k_place.buffer));
    mask(tile * BLOCK_N);
    exponentials(tile == my_tiles - 1);
    add_values(v_address, v_inverse);
    release(smem.empty_bar(v_place.buffer));
    if constexpr (!Consumer::PROMOTE) {  // O is in units of its last tile of V
      const float change = scale.v * v_inverse;
      rescale[0] *= change;
      rescale[1] *= change;
    }
    c.rescale_output(rescale);
  };

  // Splits the weights at hand and takes the next step, as long as P's second part matters, or does not. Returns whether
  // all are taken. A loop for each: in one, the registers of the second part would be kept throughout, and the compiler
  // would have too few left to work out exponentials of some rows beside the maximum of others.
  int tile = 1;
  const auto steps = [&](auto with_low) {
#pragma unroll 1
    for (;;) {
      c.template split_weights<decltype(with_low)::VALUE>();
      if (tile == my_tiles) return true;
      step(tile, with_low);
      ++tile;
      if (Consumer::LOW_IS_OPTIONAL && c.low_matters != decltype(with_low)::VALUE) return false;
    }
  };
  if constexpr (Consumer::LOW_IS_OPTIONAL) {
    for (bool is_done = false; !is_done;) {
      if (c.low_matters) {
        is_done = steps(Constant<true>());
      } else {
        is_done = steps(Constant<false>());
        c.drop_low();
      }
    }
  } else {
    steps(Constant<Consumer::P_PARTS == 2>());
  }

  asm volatile("" : "+r"(turn));  // read again, so that the loop above need not hold it
  const HopperJob done = smem.job(turn, warpgroup);

  // A warpgroup whose rows end before its neighbour's passes over the items it does not need.
  int items_left = 2 * (done.num_tiles - my_tiles);
  if (items_left > 0) skip(smem, ring, 1);
  float v_scale = 1.0f;
  if constexpr (SCALED) v_scale = arguments.scales_of_heads.of(done.kv_head).v;
  ptx::barrier_wait(smem.full_bar(ring.buffer), ring.parity);
  const uint32_t v_address = tile_address + ring.buffer * Smem::BUFFER_BYTES;
  if (!Consumer::LOW_IS_OPTIONAL || c.low_matters) {
    issue_values(v_address, Constant<true>());
    add_values(v_address, scale.v_inverse);
  } else {
    issue_values(v_address, Constant<false>());
    add_values(v_address, scale.v_inverse);
  }
  release(smem.empty_bar(ring.buffer));
  ring.next();
  skip(smem, ring, items_left - 1);

  if constexpr (!Consumer::PROMOTE) {
    const bool is_left = ptx::any_of<128>(CONSUMER_BAR + warpgroup, !c.is_accurate());
    if (is_left && threadIdx.x % 128 == 0) *finished_place(arguments, done, warpgroup) = 0;
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = c.row_sum[half];
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    float normalise = reciprocal(sum);
    if (!Consumer::PROMOTE) normalise *= scale.v_inverse;
    if (SCALED) normalise *= v_scale;
    const int row = row_in_tile + half * 8;
    const int packed = done.first_row + row;
    OUT* out = static_cast<OUT*>(arguments.out) +
               (((static_cast<int64_t>(done.batch) * arguments.seqlen_q + packed / GROUP_SIZE) * arguments.num_kv_heads + done.kv_head) *
                    GROUP_SIZE +
                packed % GROUP_SIZE) *
                   HEAD_DIM;
    c.template store<OUT>(out, row < done.rows_here, half, normalise);
  }
}

template <typename T, typename OUT, bool SCALED, bool FAST, int HEAD_DIM, int GROUP_SIZE>
__global__ void __launch_bounds__(384, 1) hopper_attention_kernel(const __grid_constant__ HopperArguments arguments) {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  using Smem = HopperMemory<T, SCALED, FAST, HEAD_DIM>;
  constexpr int CONSUMER_WARPS = 8;
  extern __shared__ unsigned char smem_bytes[];
  const HopperShared<T, SCALED, FAST, HEAD_DIM> smem(smem_bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Smem::BUFFERS; ++i) {
      ptx::barrier_init(smem.full_bar(i), 1);
      ptx::barrier_init(smem.empty_bar(i), CONSUMER_WARPS);
    }
    for (int i = 0; i < Smem::Q_BUFFERS * 2; ++i) {
      ptx::barrier_init(smem.q_full_bar(0, i), LOADER_THREADS + 1);
      ptx::barrier_init(smem.q_empty_bar(0, i), CONSUMER_WARPS / 2);
    }
    ptx::barrier_init(smem.copy_full_bar(), 1);
    ptx::barrier_init(smem.copy_empty_bar(), 1);
    ptx::barrier_init_fence();
  }
  __syncthreads();

  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    ptx::give_registers<PRODUCER_REGISTERS<TILE>>();
    if (threadIdx.x >= 32)
      hand_out_jobs<T, SCALED, FAST, HEAD_DIM, GROUP_SIZE>(arguments, smem, threadIdx.x - 32);
    else if (threadIdx.x == 0)
      copy_tiles<T, SCALED, FAST, HEAD_DIM>(arguments, smem);
  } else {
    ptx::take_registers<CONSUMER_REGISTERS<TILE>>();
    Ring<Smem::BUFFERS> ring;
#pragma unroll 1
    for (unsigned turn = 0;; ++turn) {
      ptx::barrier_wait(smem.q_full_bar(turn % Smem::Q_BUFFERS, threadIdx.x / 128 - 1), turn / Smem::Q_BUFFERS % 2);
      const int kind = __shfl_sync(0xffffffffu, static_cast<int>(smem.job(turn, threadIdx.x / 128 - 1).kind), 0);  // known to be uniform
      if (kind == HopperJob::NONE) break;
      if (split_rows(arguments, smem, turn))
        attend<T, OUT, SCALED, FAST, HEAD_DIM, GROUP_SIZE>(arguments, smem, turn, ring);
      else
        pass_over(smem, turn, ring);
    }
  }
}

}  // namespace attention
