// What a consumer warpgroup of the Hopper attention kernel has in its registers, and the steps it takes with it: S, the
// weights, O, and O's way out. The kernel, and what all of this is for: hopper.cuh.
#pragma once

#include "cuda/attention/hopper_block.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace attention {

// What a consumer warpgroup holds, and its steps.
template <typename T, bool SCALED, bool FAST, int HEAD_DIM>
struct HopperConsumer {
  using TILE = HopperTile<T, SCALED, FAST, HEAD_DIM>;
  using Smem = HopperMemory<T, SCALED, FAST, HEAD_DIM>;
  static constexpr int PARTS = TILE::PARTS;
  static constexpr int P_PARTS = TILE::P_PARTS;
  static constexpr int BLOCK_N = TILE::BLOCK_N;
  static constexpr bool PROMOTE = TILE::PROMOTE;
  // Columns of O that one product covers; fewer where O itself takes half of the registers.
  static constexpr int COLUMNS = TILE::PADDED % 128 != 0 || (PROMOTE && TILE::PADDED > 128) ? 64 : 128;
  static constexpr int COLUMN_BLOCKS = TILE::PADDED / COLUMNS;
  static constexpr int K_STEPS = BLOCK_N / 16;
  static constexpr bool HAS_OTHER_SUM = TILE::STEPS_IN_SUM < TILE::SCORE_STEPS;
  // One part of P leaves an error of up to 2^-12 of each weight. Errors of many weights partly cancel: of 16-bit
  // inputs the second part is left out where the squares of a row's weights sum to less than 1 / 32, and what
  // is left is 2e-5 of the values, a fifth of the tolerance, in the mean.
  static constexpr bool LOW_IS_OPTIONAL = P_PARTS == 2 && !PROMOTE;
  // Weights are 2^P_EXPONENT times exp(S - max), or small ones and the second part would be denormal. The maximum may
  // lie behind the largest S by 2^SLACK, so that O is seldom rescaled: together below fp16's 2^16.
  static constexpr float P_EXPONENT = 12.0f;
  static constexpr float SLACK = 3.0f;
  // Floats from here on are more than one apart: weights could be far smaller than meant.
  static constexpr float MAX_SHIFT = 16777216.0f;  // 2^24

  float o[COLUMN_BLOCKS][COLUMNS / 2];
  float s[BLOCK_N / 2];
  float other_s[HAS_OTHER_SUM ? BLOCK_N / 2 : 1];  // S of the other steps, until take_scores() has added it
  int32_t integer_s[IS_INT8<T> ? BLOCK_N / 2 : 1];  // S as it comes of int8
  uint32_t p[P_PARTS][K_STEPS][4];
  // PROMOTE: the maximum of S times Q's scale. Else what is added to an exponent: P_EXPONENT less the maximum.
  float row_max[2];
  float row_sum[2];    // of weights, this lane's share
  float row_square[LOW_IS_OPTIONAL ? 2 : 1];  // the same of the squares, or more
  bool low_matters = P_PARTS == 2;  // whether P's second part does

  // S = Q K^T for the tile at k_address; runs on. take_scores() must follow.
  __device__ __forceinline__ void issue_scores(uint32_t q_address, uint32_t k_address) {
    if constexpr (IS_INT8<T>)
      issue_scores(integer_s, q_address, k_address);
    else
      issue_scores(s, q_address, k_address);
  }
  template <typename S>
  __device__ __forceinline__ void issue_scores(S (&target)[BLOCK_N / 2], uint32_t q_address, uint32_t k_address) {
    asm volatile("" : "+r"(q_address));  // or every step's descriptor would be kept in a register
    q_address = __shfl_sync(0xffffffffu, q_address, 0);  // known to be uniform: descriptors need uniform registers
    k_address = __shfl_sync(0xffffffffu, k_address, 0);
    const ptx::Operand q(q_address, 0), k(k_address, 0);
#pragma unroll
    for (int pass = 0; pass < 2 * PARTS - 1; ++pass) {
      const int q_part = PARTS == 2 && pass == 0, k_part = pass == 1;
#pragma unroll
      for (int step = 0; step < TILE::SCORE_STEPS; ++step) {
        const int inner = step % 4 * 32;
        const uint64_t a = q.at(q_part * Smem::Q_PART_BYTES + step / 4 * Smem::Q_SLAB_BYTES + inner);
        const uint64_t b = k.at(k_part * TILE::K_PART_BYTES + step / 4 * TILE::SLAB_BYTES + inner);
        const auto multiply = [&](auto adds) {
          if constexpr (HAS_OTHER_SUM)
            ptx::wgmma_shared<decltype(adds)::VALUE>(step < TILE::STEPS_IN_SUM ? target : other_s, a, b);
          else if constexpr (TILE::IS_DIRECT && IS_BFLOAT16<T>)
            ptx::wgmma_shared_bfloat16<decltype(adds)::VALUE>(target, a, b);
          else
            ptx::wgmma_shared<decltype(adds)::VALUE>(target, a, b);
        };
        if (pass == 0 && (step == 0 || step == TILE::STEPS_IN_SUM))
          multiply(Constant<false>());
        else
          multiply(Constant<true>());
      }
    }
    ptx::wgmma_commit();
  }

  // Before issue_scores() and after its products are done: keeps the compiler's accesses to S where they belong.
  __device__ __forceinline__ void hold_scores() {
    if constexpr (IS_INT8<T>)
      ptx::hold(integer_s);
    else
      ptx::hold(s);
    if constexpr (HAS_OTHER_SUM) ptx::hold(other_s);
  }
  // S in float; int8's exactly: the sum of 256 products of it has 23 bits.
  __device__ __forceinline__ void take_scores() {
    hold_scores();
    if constexpr (HAS_OTHER_SUM) {
#pragma unroll
      for (int i = 0; i < BLOCK_N / 2; ++i) s[i] += other_s[i];
    }
    if constexpr (IS_INT8<T>) {
#pragma unroll
      for (int i = 0; i < BLOCK_N / 2; ++i) s[i] = static_cast<float>(integer_s[i]);
      if constexpr (BLOCK_N == 128) ptx::hold(s);  // or mask() would work on a second copy, which has no registers
    }
  }

  // target (+)= P V for one block of columns of the tile at v_address; runs on. WITH_LOW: with P's second part.
  template <bool WITH_LOW>
  __device__ __forceinline__ void issue_values(float (&target)[COLUMNS / 2], uint32_t v_address, int block) {
    v_address = __shfl_sync(0xffffffffu, v_address, 0);
    const ptx::Operand v(v_address + block * (COLUMNS / 64) * TILE::SLAB_BYTES, TILE::SLAB_BYTES);
    constexpr int PASSES = P_PARTS + PARTS - 1;
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
      const int p_part = P_PARTS == 2 && pass == 0, v_part = PARTS == 2 && pass == 1;
      if (P_PARTS == 2 && pass == 0 && !WITH_LOW) continue;
#pragma unroll
      for (int step = 0; step < K_STEPS; ++step) {
        const uint64_t b = v.at(v_part * TILE::V_PART_BYTES + step * 16 * TILE::ROW_BYTES);
        if (PROMOTE && pass == 0 && step == 0)
          ptx::wgmma_registers<false>(target, p[p_part][step], b);
        else
          ptx::wgmma_registers<true>(target, p[p_part][step], b);
      }
    }
    ptx::wgmma_commit();
  }

  // Hides keys: row i sees the first limit[i] of this tile.
  __device__ __forceinline__ void mask(const int (&limit)[2]) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; ++i)
      if (i / 4 * 8 + column + i % 2 >= limit[i / 2 % 2]) s[i] = minus_infinity(0.0f);
  }

  // S becomes weights; returns what O must be multiplied by.
  __device__ __forceinline__ void exponentials(const float (&row_scale)[2], const TileScale& scale, float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = s[half * 2];
#pragma unroll
      for (int i = half * 2; i < BLOCK_N / 2; i += 4) max = fmaxf(max, fmaxf(s[i], s[i + 1]));
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
      const float factor = row_scale[half] * scale.k_inverse;
      float before = row_max[half];
      if constexpr (PROMOTE) {  // subtracted first: a weight of one is a power of two, and nothing is lost of V
        before *= scale.k;
        max = (max - before) * factor > SLACK ? max : before;
        row_max[half] = max * scale.k_inverse;
        rescale[half] = ptx::exp2_approximate((before - max) * factor);
      } else {  // rounded down: no weight is above 2^(P_EXPONENT + SLACK), whatever S is
        const float shift = __fmaf_rd(max, -factor, P_EXPONENT);
        row_max[half] = shift < before - SLACK ? shift : before;
        rescale[half] = ptx::exp2_approximate(row_max[half] - before);
      }
      const auto weight = [&](float x) {
        if constexpr (PROMOTE) return ptx::exp2_approximate(fmaf(x - max, factor, P_EXPONENT));
        return ptx::exp2_approximate(fmaf(x, factor, row_max[half]));
      };
      float sum = 0, square = 0;
#pragma unroll
      for (int i = half * 2; i < BLOCK_N / 2; i += 4) {
        s[i] = weight(s[i]);
        s[i + 1] = weight(s[i + 1]);
        const float pair = s[i] + s[i + 1];
        sum += pair;
        if constexpr (LOW_IS_OPTIONAL) square += pair * pair;
      }
      row_sum[half] = row_sum[half] * rescale[half] + sum;
      if constexpr (LOW_IS_OPTIONAL)
        row_square[half] = row_square[half] * rescale[half] * rescale[half] + square;
    }
    if constexpr (LOW_IS_OPTIONAL) {
      // A lane's quarter stands for its rows: 32 times the squares against the square of four times the sum. Where that
      // does not do, the whole rows are looked at.
      bool is_low = 8 * row_square[0] > row_sum[0] * row_sum[0] || 8 * row_square[1] > row_sum[1] * row_sum[1];
      if (__any_sync(0xffffffffu, is_low)) {
        is_low = false;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum = row_sum[half], square = row_square[half];
#pragma unroll
          for (int offset = 1; offset < 4; offset *= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            square += __shfl_xor_sync(0xffffffffu, square, offset);
          }
          is_low = is_low || 32 * square > sum * sum;
        }
      }
      low_matters = ptx::any_of<128>(CONSUMER_BAR + threadIdx.x / 128 - 1, is_low);
    }
  }
  // Without PROMOTE: whether the largest weights are what they are meant to be.
  __device__ __forceinline__ bool is_accurate() const {
    return fabsf(row_max[0]) < MAX_SHIFT && fabsf(row_max[1]) < MAX_SHIFT;
  }

  template <bool WITH_LOW>
  __device__ __forceinline__ void split_weights() {
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = s[step * 8 + i * 2], y = s[step * 8 + i * 2 + 1];
        p[0][step][i] = ptx::floats_to_halves(x, y);
        if constexpr (WITH_LOW) p[1][step][i] = pack_remainders(x, y, p[0][step][i]);
      }
  }

  // Ends the life of P's second part, where the compiler cannot see that it is not read again.
  __device__ __forceinline__ void drop_low() {
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[P_PARTS - 1][step][i] = 0;
  }

  // Stores row `half` of this lane, which has two neighbouring columns of every eight; the four lanes of a row trade
  // them for 16 bytes each where a row of the output can be written so. For whole warps.
  template <typename OUT>
  __device__ __forceinline__ void store(OUT* out, bool is_there, int half, float normalise) const {
    constexpr int WORDS = sizeof(OUT) / 2;   // 32-bit words of two columns
    constexpr int TRADED = 4 / WORDS;        // eights of columns, and lanes, among which words are traded
    const int lane = threadIdx.x % 4;
    struct alignas(2 * sizeof(OUT)) Pair {
      OUT x, y;
    };
    const auto pair = [&](int eight) {
      const float* from = o[eight * 8 / COLUMNS] + eight * 8 % COLUMNS / 2 + half * 2;
      return Pair{from_accumulator<OUT>(from[0] * normalise), from_accumulator<OUT>(from[1] * normalise)};
    };
    if constexpr (HEAD_DIM * sizeof(OUT) % 16 == 0) {
#pragma unroll
      for (int eight = 0; eight < TILE::PADDED / 8; eight += TRADED) {
        uint32_t words[TRADED][WORDS];
#pragma unroll
        for (int i = 0; i < TRADED; ++i) {
          const Pair mine = pair(eight + i);
          memcpy(words[i], &mine, sizeof(mine));
        }
        // Afterwards words[i] is what lane i of the traders had of this lane's eight.
#pragma unroll
        for (int step = 1; step < TRADED; step *= 2)
#pragma unroll
          for (int i = 0; i < TRADED; ++i) {
            if (i & step) continue;
#pragma unroll
            for (int w = 0; w < WORDS; ++w) {
              uint32_t &first = words[i][w], &second = words[i | step][w];
              const bool is_upper = lane & step;
              const uint32_t got = __shfl_xor_sync(0xffffffffu, is_upper ? first : second, step);
              (is_upper ? first : second) = got;
            }
          }
        const int column = (eight + lane % TRADED) * 8 + lane / TRADED * static_cast<int>(16 / sizeof(OUT));
        uint4 bytes;
        memcpy(&bytes, words, sizeof(bytes));
        if (is_there && (HEAD_DIM == TILE::PADDED || column < HEAD_DIM)) *reinterpret_cast<uint4*>(out + column) = bytes;
      }
    } else {
#pragma unroll
      for (int eight = 0; eight < TILE::PADDED / 8; ++eight) {
        const int column = eight * 8 + lane * 2;
        const Pair mine = pair(eight);
        if (HEAD_DIM % 2 == 0) {
          if (is_there && column < HEAD_DIM) *reinterpret_cast<Pair*>(out + column) = mine;
        } else {
          if (is_there && column < HEAD_DIM) out[column] = mine.x;
          if (is_there && column + 1 < HEAD_DIM) out[column + 1] = mine.y;
        }
      }
    }
  }

  __device__ __forceinline__ void rescale_output(const float (&rescale)[2]) {
    if (!__any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; ++block)
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; ++i) o[block][i] *= rescale[i / 2 % 2];
  }
};

}  // namespace attention
