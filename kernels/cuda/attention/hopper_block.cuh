// What a block of the Hopper attention kernel has: its registers and shared memory, its ring of buffers, its jobs, and
// how it moves the rows of Q. The kernel, and what all of this is for: hopper.cuh.
#pragma once

#include "cuda/attention/head_scales.cuh"
#include "cuda/attention/hopper_split.cuh"
#include "cuda/attention/portable.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/copy_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace attention {

template <typename T, bool SCALED, bool FAST, int HEAD_DIM>
struct HopperMemory {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  static constexpr int Q_SLAB_BYTES = TILE::BLOCK_M * TILE::ROW_BYTES;
  static constexpr int Q_PART_BYTES = TILE::SCORE_SLABS * Q_SLAB_BYTES;
  // Rows of Q lie there as they come, then as parts.
  static constexpr int Q_RAW_BYTES = (HEAD_DIM * static_cast<int>(sizeof(T)) + 127) / 128 * Q_SLAB_BYTES;
  static constexpr int Q_BYTES = larger(TILE::PARTS * Q_PART_BYTES, Q_RAW_BYTES);
  static constexpr int LIMIT = 227 * 1024;
  static constexpr int ALIGNMENT = 1024;  // of tiles, by the swizzle
  static constexpr int MIN_BUFFERS = 3;   // K of the next tile and V of this one are read, another is filled
  static constexpr int MAX_BUFFERS = 8;
  static constexpr int REST_BYTES =
      MAX_BUFFERS * 2 * 8 + 2 * (TILE::BLOCK_M * 4 + 2 * 2 * 8) + 2 * 8 + 9 * 32;  // see HopperShared
  static constexpr int SPACE = LIMIT - ALIGNMENT - REST_BYTES;
  static constexpr int BUFFER_BYTES = TILE::V_BYTES;  // a tile of K or V
  // The next rows of Q are loaded while these are worked on, where both fit, and the registers to keep book of it
  // are there: sums outside the tensor cores and 128 keys, at head_dim up to 64, leave none.
  static constexpr bool HAS_REGISTERS = !TILE::PROMOTE || TILE::BLOCK_N < 128;
  static constexpr int Q_BUFFERS = HAS_REGISTERS && 2 * Q_BYTES + MIN_BUFFERS * BUFFER_BYTES <= SPACE ? 2 : 1;
  static constexpr int BUFFERS = smaller(MAX_BUFFERS, (SPACE - Q_BUFFERS * Q_BYTES) / BUFFER_BYTES);
  static constexpr int BYTES = ALIGNMENT + Q_BUFFERS * Q_BYTES + BUFFERS * BUFFER_BYTES + REST_BYTES;
  static_assert(BUFFERS >= MIN_BUFFERS, "shared memory must hold this many tiles");
};

// Registers of a thread; a block's 3 warpgroups share 504. Copying rows of Q to where they will be used takes more.
template <typename TILE>
constexpr int PRODUCER_REGISTERS = TILE::IS_DIRECT ? 56 : 40;
template <typename TILE>
constexpr int CONSUMER_REGISTERS = (504 - PRODUCER_REGISTERS<TILE>) / 2;

struct HopperArguments {
  const void* q;
  int64_t q_stride[4];
  bool q_vectors;
  int seqlen_q;
  int seqlen_k;
  int num_kv_heads;
  int heads;             // batch * num_kv_heads
  int heads_in_section;  // that share L2
  int row_tiles;
  int jobs;             // heads * row_tiles
  int jobs_in_section;  // heads_in_section * row_tiles
  int kv_tiles;
  float exponent_scale;
  const unsigned char* tiles;
  const TileScale* scales;
  int* next_job;            // jobs handed out beyond the first of each block
  unsigned char* finished;  // [heads][row_tiles][half]: not zero where this kernel has written the rows
  void* out;
  ScaleArguments scales_of_heads;  // of fp8_attn, which has one query head for each kv head
};

// What the scales of a head do to its logits. Beyond these bounds, or where they are not numbers, the portable kernel
// is left to say what comes of it: products and quotients would leave the range of normal numbers.
constexpr float MAX_HEAD_SCALE = 1152921504606846976.0f;  // 2^60
constexpr float MIN_HEAD_SCALE = 1 / MAX_HEAD_SCALE;
__device__ __forceinline__ bool is_usable(float q_scale, float k_scale, float v_scale) {
  const float q = fabsf(q_scale), k = fabsf(k_scale);
  return q >= MIN_HEAD_SCALE && q <= MAX_HEAD_SCALE && k >= MIN_HEAD_SCALE && k <= MAX_HEAD_SCALE &&
         fabsf(v_scale) <= MAX_HEAD_SCALE;
}
// And of what a row of Q was multiplied by as well, where a tile of K can add 2^54 to either side.
constexpr float MAX_ROW_SCALE = 73786976294838206464.0f;  // 2^66
constexpr float MIN_ROW_SCALE = 1 / MAX_ROW_SCALE;


// The packed rows of one (batch, kv head) that a block works on at a time. Jobs are numbered by
// sections of heads, in each the longest rows first.
struct alignas(16) HopperJob {
  enum Kind { NONE, LEFT, OURS };  // no more jobs; rows left to the portable kernel; rows of this one

  int head;  // batch * num_kv_heads + kv_head
  int batch;
  int kv_head;
  int row_tile;
  int first_row;
  int rows_here;
  int num_tiles;  // of keys
  Kind kind;

  template <int GROUP_SIZE, int BLOCK_M, int BLOCK_N>
  __device__ __forceinline__ static HopperJob numbered(int job, const HopperArguments& a) {
    HopperJob here;
    here.kind = job < a.jobs ? OURS : NONE;
    if (here.kind == NONE) job = 0;
    const int section = job / a.jobs_in_section;
    const int place = job % a.jobs_in_section;
    const int heads_here = min(a.heads_in_section, a.heads - section * a.heads_in_section);
    here.head = section * a.heads_in_section + place % heads_here;
    here.batch = here.head / a.num_kv_heads;
    here.kv_head = here.head % a.num_kv_heads;
    here.row_tile = a.row_tiles - 1 - place / heads_here;
    here.first_row = here.row_tile * BLOCK_M;
    here.rows_here = min(BLOCK_M, a.seqlen_q * GROUP_SIZE - here.first_row);
    const int last_time = (here.first_row + here.rows_here - 1) / GROUP_SIZE;
    here.num_tiles = (min(last_time + 1, a.seqlen_k) + BLOCK_N - 1) / BLOCK_N;
    return here;
  }
};

constexpr int LOADER_THREADS = 96;  // that have Q copied
constexpr int LOADER_BAR = 1;       // their hardware barrier, and of each consumer warpgroup
constexpr int CONSUMER_BAR = 2;

template <bool B>
struct Constant {
  static constexpr bool VALUE = B;
};

// A place in the ring of buffers, and how often it has come round.
template <int BUFFERS>
struct Ring {
  int buffer = 0;
  int parity = 0;

  __device__ __forceinline__ void next() {
    if (++buffer == BUFFERS) {
      buffer = 0;
      parity ^= 1;
    }
  }
};

// Shared memory, found from its first aligned byte.
template <typename T, bool SCALED, bool FAST, int HEAD_DIM>
struct HopperShared {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  using Smem = HopperMemory<T, SCALED, FAST, HEAD_DIM>;
  static constexpr int TILES = Smem::Q_BUFFERS * Smem::Q_BYTES;
  // A consumer reads its job until the next one begins, when the one after that may have been handed out.
  static constexpr int JOB_SLOTS = 4;
  static constexpr int JOBS = TILES + Smem::BUFFERS * Smem::BUFFER_BYTES;
  static constexpr int FULL_BARS = JOBS + (JOB_SLOTS * 2 + 1) * static_cast<int>(sizeof(HopperJob));
  static constexpr int EMPTY_BARS = FULL_BARS + Smem::BUFFERS * 8;
  static constexpr int Q_FULL_BARS = EMPTY_BARS + Smem::BUFFERS * 8;
  static constexpr int Q_EMPTY_BARS = Q_FULL_BARS + Smem::Q_BUFFERS * 2 * 8;
  static constexpr int COPY_BARS = Q_EMPTY_BARS + Smem::Q_BUFFERS * 2 * 8;
  static constexpr int Q_SCALES = COPY_BARS + 2 * 8;
  static constexpr int END = Q_SCALES + Smem::Q_BUFFERS * TILE::BLOCK_M * 4;
  static_assert(JOB_SLOTS > Smem::Q_BUFFERS, "a job must outlive the rows of Q");
  static_assert(END + Smem::ALIGNMENT <= Smem::BYTES, "what is counted must be all");

  unsigned char* base;

  __device__ __forceinline__ explicit HopperShared(unsigned char* bytes)
      : base(bytes + (0u - ptx::shared_address(bytes)) % Smem::ALIGNMENT) {}
  __device__ __forceinline__ unsigned char* q(int buffer) const { return base + buffer * Smem::Q_BYTES; }
  __device__ __forceinline__ unsigned char* tile(int buffer) const { return base + TILES + buffer * Smem::BUFFER_BYTES; }
  __device__ __forceinline__ ptx::Barrier* full_bar(int buffer) const { return bars(FULL_BARS) + buffer; }
  __device__ __forceinline__ ptx::Barrier* empty_bar(int buffer) const { return bars(EMPTY_BARS) + buffer; }
  // Of the rows of a buffer that consumer warpgroup `half` has.
  __device__ __forceinline__ ptx::Barrier* q_full_bar(int buffer, int half) const {
    return bars(Q_FULL_BARS) + buffer * 2 + half;
  }
  __device__ __forceinline__ ptx::Barrier* q_empty_bar(int buffer, int half) const {
    return bars(Q_EMPTY_BARS) + buffer * 2 + half;
  }
  // Of copy_job().
  __device__ __forceinline__ ptx::Barrier* copy_full_bar() const { return bars(COPY_BARS); }
  __device__ __forceinline__ ptx::Barrier* copy_empty_bar() const { return bars(COPY_BARS) + 1; }
  // What each row of Q was multiplied by, inverted.
  __device__ __forceinline__ float* q_scale(int buffer) const {
    return reinterpret_cast<float*>(base + Q_SCALES) + buffer * TILE::BLOCK_M;
  }
  // For consumer warpgroup `half`, with the rows of Q.
  __device__ __forceinline__ HopperJob& job(unsigned turn, int half) const {
    return reinterpret_cast<HopperJob*>(base + JOBS)[turn % JOB_SLOTS * 2 + half];
  }
  // For the copying thread and the loading warps.
  __device__ __forceinline__ HopperJob& copy_job() const { return reinterpret_cast<HopperJob*>(base + JOBS)[JOB_SLOTS * 2]; }

 private:
  __device__ __forceinline__ ptx::Barrier* bars(int offset) const { return reinterpret_cast<ptx::Barrier*>(base + offset); }
};

// How the rows of Q are moved: LANES lanes share a row, each with VECTORS chunks of it.
template <typename T, bool SCALED, bool FAST, int HEAD_DIM>
struct HopperQueries {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  using Smem = HopperMemory<T, SCALED, FAST, HEAD_DIM>;
  static constexpr int ROWS = TILE::BLOCK_M / 2;  // a consumer warpgroup's
  static constexpr int LANES = TILE::PADDED == 64 ? 16 : 32;
  static constexpr int VECTORS = (TILE::PADDED + LANES * CHUNK - 1) / (LANES * CHUNK);
  static constexpr int VECTOR_BYTES = CHUNK * static_cast<int>(sizeof(T));

  // Where a chunk of a row lies until it is split: among the bytes that the row's parts will have, and past them.
  __device__ __forceinline__ static unsigned char* raw(unsigned char* q_smem, int row, int vector) {
    const int byte = vector * VECTOR_BYTES;
    return q_smem + byte / TILE::ROW_BYTES * Smem::Q_SLAB_BYTES + row * TILE::ROW_BYTES + byte % TILE::ROW_BYTES;
  }

  // Where the tensor cores look for a chunk of a row.
  __device__ __forceinline__ static unsigned char* swizzled(unsigned char* q_smem, int row, int dim) {
    return q_smem + dim / 64 * Smem::Q_SLAB_BYTES + row * TILE::ROW_BYTES + (dim % 64 / 8 ^ row % 8) * 16 + dim % 8 * 2;
  }

  // Starts copying rows. IS_DIRECT: to where they will be used, and zeros beyond the last row and the last element.
  // Nothing where rows_here is below zero.
  template <int THREADS, int GROUP_SIZE>
  __device__ __forceinline__ static void copy(unsigned char* q_smem, const PackedRows<T, GROUP_SIZE>& from, int rows_here,
                                              int thread) {
    asm volatile("" : "+r"(thread));  // or what follows from it would be kept in registers
    const int rows = TILE::IS_DIRECT && rows_here >= 0 ? ROWS : rows_here;
#pragma unroll 1
    for (int row = thread / LANES; row < rows; row += THREADS / LANES) {
      const bool is_there = !TILE::IS_DIRECT || row < rows_here;
      const T* row_gmem = from.row(is_there ? row : 0);
#pragma unroll 1
      for (int vector = thread % LANES; vector * CHUNK < (TILE::IS_DIRECT ? round_up(HEAD_DIM, 16) : HEAD_DIM);
           vector += LANES) {
        if constexpr (TILE::IS_DIRECT) {
          unsigned char* place = swizzled(q_smem, row, vector * CHUNK);
          if (from.vectors) {
            const bool is_padding = vector * CHUNK >= HEAD_DIM;
            ptx::copy_async<VECTOR_BYTES>(place, is_padding ? row_gmem : row_gmem + vector * CHUNK, is_there && !is_padding);
            continue;
          }
#pragma unroll 1
          for (int e = 0; e < CHUNK; ++e) {
            const int dim = vector * CHUNK + e;
            reinterpret_cast<T*>(place)[e] = is_there && dim < HEAD_DIM ? row_gmem[dim * from.inner_stride] : T{};
          }
          continue;
        }
        if (from.vectors) {
          ptx::copy_async<VECTOR_BYTES>(raw(q_smem, row, vector), row_gmem + vector * CHUNK);
        } else {
#pragma unroll 1
          for (int e = 0; e < smaller(CHUNK, HEAD_DIM - vector * CHUNK); ++e)
            reinterpret_cast<T*>(raw(q_smem, row, vector))[e] = row_gmem[(vector * CHUNK + e) * from.inner_stride];
        }
      }
    }
  }

  // After copy(): `bar` gets this thread's arrival when its copies are done.
  __device__ __forceinline__ static void arrive_after_copies(bool with_vectors, ptx::Barrier* bar) {
    if constexpr (TILE::IS_DIRECT) {  // a fence of the consumers would have to wait for the stores of their last job
      ptx::wait_for_copies();
      ptx::async_proxy_fence();
      ptx::barrier_arrive(bar);
    } else if (with_vectors) {
      ptx::barrier_arrive_after_copies(bar);
    } else {
      ptx::barrier_arrive(bar);
    }
  }

  // Scales each row by a power of two and writes its parts over it; rows from rows_here on are zero.
  // `head_factor` is what SCALED multiplies logits by: its sign goes into the rows, the rest into their scales.
  // For the 128 threads of a warpgroup. Returns whether this thread saw a row that cannot be split.
  __device__ __forceinline__ static bool split(unsigned char* q_smem, float* scale_smem, int rows_here, float head_factor) {
    if constexpr (IS_INT8<T>) return swizzle(q_smem, scale_smem, rows_here, head_factor);
    constexpr int STEP = 128 / LANES;
    constexpr int BATCH = 8 / VECTORS;  // rows a lane has at a time
    static_assert(ROWS % (STEP * BATCH) == 0, "every batch must be whole");
    const int thread = threadIdx.x % 128;
    const int lane = thread % LANES;
    bool is_bad = false;
#pragma unroll 1
    for (int start = thread / LANES; start < ROWS; start += STEP * BATCH) {
      float x[BATCH][VECTORS][CHUNK];
      uint32_t largest[BATCH];
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        const int row = start + i * STEP;
        largest[i] = 0;
#pragma unroll
        for (int part = 0; part < VECTORS; ++part) {
          const int vector = part * LANES + lane;
          Vec4<T> loaded = {};
          if (row < rows_here && vector * CHUNK < HEAD_DIM)
            loaded = *reinterpret_cast<const Vec4<T>*>(raw(q_smem, row, vector));
#pragma unroll
          for (int e = 0; e < CHUNK; ++e) {
            x[i][part][e] = vector * CHUNK + e < HEAD_DIM ? to_accumulator(loaded.x[e]) : 0.0f;
            largest[i] = max(largest[i], magnitude_bits(x[i][part][e]));
          }
        }
      }
#pragma unroll
      for (int offset = 1; offset < LANES; offset *= 2)
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
          largest[i] = max(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], offset));
      __syncwarp();  // every lane has its part of the rows: they can be overwritten
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        const int row = start + i * STEP;
        float scale = split_scale<T, TILE::PROMOTE>(largest[i]);
        is_bad = is_bad || scale == 0;
        float inverse = inverse_power(scale);
        if constexpr (SCALED) {
          inverse *= fabsf(head_factor);
          if constexpr (!TILE::IS_EXACT) is_bad = is_bad || !(inverse >= MIN_ROW_SCALE && inverse <= MAX_ROW_SCALE);
          scale = copysignf(scale, head_factor);
        }
        if (lane == 0) scale_smem[row] = inverse;
#pragma unroll
        for (int part = 0; part < VECTORS; ++part) {
          const int dim = (part * LANES + lane) * CHUNK;
          if (TILE::PADDED % (LANES * CHUNK) != 0 && dim >= TILE::PADDED) continue;
          unsigned char* place = swizzled(q_smem, row, dim);
          float(&y)[CHUNK] = x[i][part];
#pragma unroll
          for (int e = 0; e < CHUNK; ++e) y[e] *= scale;
          const uint2 high = make_uint2(ptx::floats_to_halves(y[0], y[1]), ptx::floats_to_halves(y[2], y[3]));
          *reinterpret_cast<uint2*>(place) = high;
          if (TILE::PARTS == 2)
            *reinterpret_cast<uint2*>(place + Smem::Q_PART_BYTES) =
                make_uint2(pack_remainders(y[0], y[1], high.x), pack_remainders(y[2], y[3], high.y));
        }
      }
    }
    return is_bad;
  }

 private:
  // The same for int8, which the tensor cores read as it is: each row's bytes change places. -128 has no opposite.
  __device__ __forceinline__ static bool swizzle(unsigned char* q_smem, float* scale_smem, int rows_here, float head_factor) {
    constexpr int STEP = 128 / LANES;
    constexpr int BATCH = 8 / VECTORS;
    const int thread = threadIdx.x % 128;
    const int lane = thread % LANES;
    bool is_bad = false;
#pragma unroll 1
    for (int start = thread / LANES; start < ROWS; start += STEP * BATCH) {
      uint32_t x[BATCH][VECTORS];
#pragma unroll
      for (int i = 0; i < BATCH; ++i)
#pragma unroll
        for (int part = 0; part < VECTORS; ++part) {
          const int row = start + i * STEP, vector = part * LANES + lane;
          const int elements = row < rows_here ? HEAD_DIM - vector * CHUNK : 0;
          uint32_t& four = x[i][part];
          four = elements > 0 ? *reinterpret_cast<const uint32_t*>(raw(q_smem, row, vector)) : 0;
          if (HEAD_DIM % CHUNK != 0 && elements < CHUNK) four &= (1u << 8 * larger(elements, 0)) - 1;
          if (head_factor < 0) {
            is_bad = is_bad || __vcmpeq4(four, 0x80808080u) != 0;
            four = __vneg4(four);
          }
        }
      __syncwarp();  // every lane has its part of the rows: they can be overwritten
#pragma unroll
      for (int i = 0; i < BATCH; ++i)
#pragma unroll
        for (int part = 0; part < VECTORS; ++part) {
          const int row = start + i * STEP, dim = (part * LANES + lane) * CHUNK;
          if (dim < TILE::PADDED)
            *reinterpret_cast<uint32_t*>(q_smem + dim / 128 * Smem::Q_SLAB_BYTES + row * TILE::ROW_BYTES +
                                         (dim % 128 / 16 ^ row % 8) * 16 + dim % 16) = x[i][part];
          if (part == 0 && lane == 0) scale_smem[row] = fabsf(head_factor);
        }
    }
    return is_bad;
  }
};

}  // namespace attention
