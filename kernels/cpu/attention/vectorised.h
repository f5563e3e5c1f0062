// Causal grouped-query attention forward on the CPU: blocked, vectorised, all cores.
//
// Algorithm: flash attention. A task owns consecutive query rows of one (batch, kv head); it walks the
//   keys in blocks of BLOCK_N with a running maximum and sum per row, and never materialises more than
//   one TILE_ROWS x BLOCK_N tile of logits. The query heads of a group are rows of the same task (row
//   r is time r / group_size, head r % group_size), so each block of K and V is packed once for all.
// Shapes and dtypes: q [batch, seqlen_q, num_heads, HEAD_DIM]; k, v [batch, seqlen_k, num_kv_heads,
//   HEAD_DIM]; any strides; out contiguous like q. Row t sees keys 0 .. min(t, seqlen_k - 1).
//   Stored types are those of types.h; float32 arithmetic, float64 for double. SCALED: every loaded
//   value is float(x) * scale[head], rounded, before it is used.
// Layout (per worker; C is float or double; a chunk is the rows that a worker holds at once):
//   q_tile [chunk rows][PADDED_DIM]              converted, row-major, read by broadcast
//   k_pack [BLOCK_N / PANEL][HEAD_DIM][PANEL]    transposed, one key per lane
//   v_pack [BLOCK_N][PADDED_DIM]                 converted, zero-padded columns
//   s_tile [TILE_ROWS][BLOCK_N]                  logits, then probabilities in place
//   o_acc  [chunk rows][PADDED_DIM]              running output, row_max and row_sum beside it
// Numerics:
//   - A logit is summed in chunks of DIM_CHUNK products. Rows whose largest scaled logit exceeds
//     REFINE_ABOVE, where float32 has too few places left, have theirs computed again in double.
//   - The maximum is subtracted before the softmax scale, so large logits keep their differences.
//   - Each block's P V is summed from zero and then added to the rescaled running output: rounding
//     grows with the number of blocks rather than of keys.
//   - Masked keys never meet an accumulator: a logit is masked by selection, and P V runs over the
//     keys that a row sees, so NaN or infinity in a later key cannot leak.
//   - A row whose visible logits are all -inf is 0 / 0 = NaN, as softmax has it.
//   - What is computed for a row depends on that row alone, not on its neighbours in a tile: the same
//     bits in any batch, task split or thread count.
// Work: 4 * batch * num_heads * HEAD_DIM * (visible pairs) FLOP. Logits are computed up to the next
//   multiple of PANEL keys, P V exactly. Workers pull tasks from a shared counter.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "bindings/attention_params.h"
#include "cpu/attention/simd.h"
#include "cpu/attention/types.h"

namespace attention {
namespace {

constexpr int32_t OUT_OF_MEMORY = 1;  // no worker could allocate its scratch
constexpr int32_t POOL_FAILED = 2;    // parallel_for reported an error

constexpr int64_t STACK_BYTES = 64 * 1024;  // workers of small problems need no heap
constexpr int CACHE_LINE = 64;
constexpr int DIM_CHUNK = 16;          // products summed in one chain of roundings, and unrolled
constexpr double REFINE_ABOVE = 64.0;  // rows whose largest scaled logit is beyond this are refined

constexpr double LOG2_E = 1.4426950408889634073599246810019;

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr int64_t divide_up(int64_t n, int64_t d) { return (n + d - 1) / d; }
constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Compile-time sizes of one specialisation.
template <typename T, int HEAD_DIM>
struct Shape {
  using C = typename Compute<T>::type;
  static constexpr int WIDTH = Simd<C>::WIDTH;
  static constexpr int PANEL = TILE_VECTORS * WIDTH;
  static constexpr int DIM_VECTORS = (HEAD_DIM + WIDTH - 1) / WIDTH;
  static constexpr int PADDED_DIM = DIM_VECTORS * WIDTH;
  // Packed K and V of one block should stay in the first-level cache, yet a block must be long enough
  // to pay for its softmax bookkeeping.
  static constexpr int BLOCK_BYTES = 16 * 1024;
  static constexpr int FITTING_N = BLOCK_BYTES / int(sizeof(C)) / PADDED_DIM;
  static constexpr int BLOCK_N = int(most(round_up(least(FITTING_N, 128), PANEL), round_up(32, PANEL)));
  static constexpr int STATE_ROWS = int(round_up(TILE_ROWS, WIDTH));  // row state, padded to whole vectors
  static_assert(BLOCK_N % PANEL == 0 && PANEL % WIDTH == 0, "blocks are whole panels of whole vectors");
};

// How the work is cut. A pair is one (batch, kv head).
struct Plan {
  const AttentionParams* params;
  int64_t group_size;
  int64_t rows;        // of one pair: seqlen_q * group_size
  int64_t task_rows;   // consecutive rows of one pair
  int64_t chunk_rows;  // rows of a task whose state a worker holds at once
  int64_t tasks_per_pair;
  int64_t num_tasks;
  int64_t scratch_bytes;
  alignas(CACHE_LINE) int64_t next_task;  // what the workers share
};

inline int64_t visible_keys(const AttentionParams& p, int64_t t) { return least(t + 1, p.seqlen_k); }

// Converts one row of HEAD_DIM stored values; columns up to PADDED_DIM become zero.
template <typename T, int HEAD_DIM, bool SCALED>
inline void load_row(const T* __restrict source, int64_t stride, float scale,
                     typename Compute<T>::type* __restrict row) {
  using S = Shape<T, HEAD_DIM>;
  using C = typename S::C;
  if (stride == 1) {
    for (int d = 0; d < HEAD_DIM; ++d) row[d] = SCALED ? widen(source[d]) * C(scale) : widen(source[d]);
  } else {
    for (int d = 0; d < HEAD_DIM; ++d) {
      const C value = widen(source[d * stride]);
      row[d] = SCALED ? value * C(scale) : value;
    }
  }
  for (int d = HEAD_DIM; d < S::PADDED_DIM; ++d) row[d] = C(0);
}

template <typename T, int HEAD_DIM, bool SCALED>
__attribute__((noinline)) void pack_keys(const T* keys, int64_t time_stride, int64_t dim_stride, float scale,
                                         int num_keys, typename Compute<T>::type* k_pack) {
  using S = Shape<T, HEAD_DIM>;
  using C = typename S::C;
  constexpr int WIDTH = S::WIDTH;
  // Rows that need no conversion are transposed from where they are.
  constexpr bool DIRECT = std::is_same<T, C>::value && !SCALED && HEAD_DIM % WIDTH == 0;
  alignas(CACHE_LINE) C converted[WIDTH][S::PADDED_DIM];
  const int padded_keys = int(round_up(num_keys, S::PANEL));
  for (int n = 0; n < padded_keys; n += WIDTH) {
    const C* rows[WIDTH];
    for (int i = 0; i < WIDTH; ++i) {
      rows[i] = converted[i];
      if (n + i >= num_keys) {
        for (int d = 0; d < S::PADDED_DIM; ++d) converted[i][d] = C(0);
        continue;
      }
      const T* key = keys + (n + i) * time_stride;
      if constexpr (DIRECT) {
        if (dim_stride == 1) {
          rows[i] = key;
          continue;
        }
      }
      load_row<T, HEAD_DIM, SCALED>(key, dim_stride, scale, converted[i]);
    }
    C* out = k_pack + n / S::PANEL * (HEAD_DIM * S::PANEL) + n % S::PANEL;
    for (int d = 0; d < HEAD_DIM; d += WIDTH) {
      Vec<C> block[WIDTH];
#pragma GCC unroll 16
      for (int i = 0; i < WIDTH; ++i) block[i] = load_unaligned<C>(rows[i] + d);
      transpose<C>(block);
#pragma GCC unroll 16
      for (int i = 0; i < WIDTH; ++i) {
        if (d + i < HEAD_DIM) store<C>(out + (d + i) * S::PANEL, block[i]);
      }
    }
  }
}

template <typename T, int HEAD_DIM, bool SCALED>
__attribute__((noinline)) void pack_rows(const T* source, int64_t time_stride, int64_t dim_stride,
                                         float scale, int64_t num_rows, typename Compute<T>::type* out) {
  for (int64_t n = 0; n < num_rows; ++n) {
    load_row<T, HEAD_DIM, SCALED>(source + n * time_stride, dim_stride, scale,
                                  out + n * Shape<T, HEAD_DIM>::PADDED_DIM);
  }
}

// s_tile[i][0 .. PANEL) += the products of COUNT dimensions, summed among themselves first. Unrolled
// whole and begun with a product instead of zero: measured 15 % faster than a loop over dimensions.
template <typename T, int HEAD_DIM, int COUNT>
__attribute__((always_inline)) inline void multiply_qk_chunk(const typename Compute<T>::type* q_tile,
                                                             const typename Compute<T>::type* panel,
                                                             bool first_chunk,
                                                             typename Compute<T>::type* s_tile) {
  using S = Shape<T, HEAD_DIM>;
  using C = typename S::C;
  Vec<C> acc[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 8
  for (int i = 0; i < TILE_ROWS; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < TILE_VECTORS; ++j) {
      acc[i][j] = splat<C>(q_tile[i * S::PADDED_DIM]) * load<C>(panel + j * S::WIDTH);
    }
  }
#pragma GCC unroll 16
  for (int d = 1; d < COUNT; ++d) {
    Vec<C> keys[TILE_VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < TILE_VECTORS; ++j) keys[j] = load<C>(panel + d * S::PANEL + j * S::WIDTH);
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; ++i) {
      const Vec<C> q = splat<C>(q_tile[i * S::PADDED_DIM + d]);
#pragma GCC unroll 8
      for (int j = 0; j < TILE_VECTORS; ++j) acc[i][j] += q * keys[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < TILE_ROWS; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < TILE_VECTORS; ++j) {
      C* s = s_tile + i * S::BLOCK_N + j * S::WIDTH;
      if (!first_chunk) acc[i][j] += load<C>(s);
      store<C>(s, acc[i][j]);
    }
  }
}

// s_tile[i][0 .. num_keys rounded up to PANEL) = q_tile[i] . keys, in chunks of DIM_CHUNK products: one
// long chain of roundings would lose up to twice what a library's dot product loses.
template <typename T, int HEAD_DIM>
__attribute__((noinline)) void multiply_qk(const typename Compute<T>::type* q_tile,
                                           const typename Compute<T>::type* k_pack, int num_keys,
                                           typename Compute<T>::type* s_tile) {
  using S = Shape<T, HEAD_DIM>;
  constexpr int WHOLE = HEAD_DIM / DIM_CHUNK * DIM_CHUNK;
  for (int n = 0; n < num_keys; n += S::PANEL) {
    const auto* panel = k_pack + n * HEAD_DIM;
    for (int d = 0; d < WHOLE; d += DIM_CHUNK) {
      multiply_qk_chunk<T, HEAD_DIM, DIM_CHUNK>(q_tile + d, panel + d * S::PANEL, d == 0, s_tile + n);
    }
    if constexpr (WHOLE < HEAD_DIM) {
      multiply_qk_chunk<T, HEAD_DIM, HEAD_DIM - WHOLE>(q_tile + WHOLE, panel + WHOLE * S::PANEL, WHOLE == 0,
                                                       s_tile + n);
    }
  }
}

// o_acc = o_acc * alpha + P V over the keys each row sees, VECTORS vectors of columns. Rows see more
// keys the later they are: the tile shares the keys that its first row sees; the few after them are
// added row by row, so that no row meets a value it must not see.
template <typename T, int HEAD_DIM, int VECTORS>
__attribute__((noinline)) void multiply_pv(const typename Compute<T>::type* p_tile,
                                           const typename Compute<T>::type* v_pack, const int* visible,
                                           const typename Compute<T>::type* alpha, bool first_block,
                                           typename Compute<T>::type* o_acc) {
  using S = Shape<T, HEAD_DIM>;
  using C = typename S::C;
  Vec<C> acc[TILE_ROWS][VECTORS] = {};
  const int shared = visible[0];
  const int last = visible[TILE_ROWS - 1];
  for (int n = 0; n < shared; ++n) {
    Vec<C> values[VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) values[j] = load<C>(v_pack + n * S::PADDED_DIM + j * S::WIDTH);
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; ++i) {
      const Vec<C> p = splat<C>(p_tile[i * S::BLOCK_N + n]);
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) acc[i][j] += p * values[j];
    }
  }
  for (int n = shared; n < last; ++n) {
    Vec<C> values[VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) values[j] = load<C>(v_pack + n * S::PADDED_DIM + j * S::WIDTH);
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; ++i) {
      if (n < visible[i]) {
        const Vec<C> p = splat<C>(p_tile[i * S::BLOCK_N + n]);
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; ++j) acc[i][j] += p * values[j];
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < TILE_ROWS; ++i) {
    const Vec<C> rescale = splat<C>(alpha[i]);
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) {
      C* o = o_acc + i * S::PADDED_DIM + j * S::WIDTH;
      if (!first_block) acc[i][j] += load<C>(o) * rescale;
      store<C>(o, acc[i][j]);
    }
  }
}

// One row's logits again, from products and sums in double. Returns the larger of `before` and their
// maximum, and leaves in s their differences to it: -inf where masked.
template <typename T, int HEAD_DIM>
__attribute__((noinline)) double refine_logits(const float* q_row, const float* k_pack, int visible, int end,
                                               double before, float* s) {
  using S = Shape<T, HEAD_DIM>;
  constexpr int WIDTH = Simd<double>::WIDTH;
  constexpr int VECTORS = S::PANEL / WIDTH;
  alignas(CACHE_LINE) double exact[S::BLOCK_N];
  double after = before;
  for (int n = 0; n < visible; n += S::PANEL) {
    const float* panel = k_pack + n * HEAD_DIM;
    Vec<double> acc[VECTORS] = {};
    for (int d = 0; d < HEAD_DIM; ++d) {
      const Vec<double> q = splat<double>(q_row[d]);
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) acc[j] += q * load_widened(panel + d * S::PANEL + j * WIDTH);
    }
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) store<double>(exact + n + j * WIDTH, acc[j]);
    for (int j = n; j < n + S::PANEL && j < visible; ++j) after = exact[j] > after ? exact[j] : after;
  }
  const double shift = after == -__builtin_inf() ? 0.0 : after;
  for (int n = 0; n < end; ++n) s[n] = n < visible ? float(exact[n] - shift) : -__builtin_inff();
  return after;
}

// Logits to probabilities in place; updates row_max and row_sum and leaves in alpha the factor by
// which what was accumulated before shrinks.
template <typename T, int HEAD_DIM>
__attribute__((noinline)) void softmax_tile(const typename Compute<T>::type* q_tile,
                                            const typename Compute<T>::type* k_pack,
                                            typename Compute<T>::type* s_tile, const int* visible,
                                            typename Compute<T>::type scale, double* row_max,
                                            typename Compute<T>::type* row_sum,
                                            typename Compute<T>::type* alpha) {
  using S = Shape<T, HEAD_DIM>;
  using C = typename S::C;
  constexpr int WIDTH = S::WIDTH;
  constexpr C INFINITE = C(__builtin_inf());
  const C lowest = -Exp2<C>::BIAS / scale;
  const C refine_above = C(REFINE_ABOVE * LOG2_E) / scale;
  const typename Simd<C>::IntVec lanes = lane_numbers<C>();
  alignas(CACHE_LINE) C block_sum[S::STATE_ROWS] = {};
  alignas(CACHE_LINE) C fall[S::STATE_ROWS] = {};  // from the maximum so far to the one with this block
  C shift[TILE_ROWS];                              // what is still to be subtracted from s_tile

  const int end = int(round_up(visible[TILE_ROWS - 1], WIDTH));
  for (int i = 0; i < TILE_ROWS; ++i) {
    C* s = s_tile + i * S::BLOCK_N;
    for (int n = visible[i] / WIDTH * WIDTH; n < end; n += WIDTH) {
      store<C>(s + n, lanes < splat_int<C>(visible[i] - n) ? load<C>(s + n) : splat<C>(-INFINITE));
    }
  }
  Vec<C> greatest[TILE_ROWS];
#pragma GCC unroll 8
  for (int i = 0; i < TILE_ROWS; ++i) greatest[i] = splat<C>(C(row_max[i]));
  for (int n = 0; n < end; n += WIDTH) {
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; ++i) {
      greatest[i] = maximum<C>(load<C>(s_tile + i * S::BLOCK_N + n), greatest[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < TILE_ROWS; ++i) {
    const double before = row_max[i];
    double after = horizontal_max<C>(greatest[i]);
    // A row that saw only -inf so far: -inf - 0 keeps its probabilities 0 where -inf - -inf is NaN.
    shift[i] = after == -INFINITE ? C(0) : C(after);
    if constexpr (std::is_same<C, float>::value) {
      // The last place of such a logit would show in the probabilities.
      if (__builtin_fabsf(shift[i]) > refine_above) {
        after = refine_logits<T, HEAD_DIM>(q_tile + i * S::PADDED_DIM, k_pack, visible[i], end, before,
                                           s_tile + i * S::BLOCK_N);
        shift[i] = 0.0f;
      }
    }
    row_max[i] = after;
    fall[i] = C(before - (after == -INFINITE ? 0.0 : after));
  }
  Vec<C> sum[TILE_ROWS] = {};
  for (int n = 0; n < end; n += WIDTH) {
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; ++i) {
      C* s = s_tile + i * S::BLOCK_N + n;
      const Vec<C> p = exp2_scaled<C>(load<C>(s) - splat<C>(shift[i]), scale, lowest);
      store<C>(s, p);
      sum[i] += p;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < TILE_ROWS; ++i) block_sum[i] = horizontal_sum<C>(sum[i]);
  for (int i = 0; i < S::STATE_ROWS; i += WIDTH) {
    const Vec<C> rescale = exp2_scaled<C>(load<C>(fall + i), scale, lowest);
    store<C>(alpha + i, rescale);
    store<C>(row_sum + i, load<C>(row_sum + i) * rescale + load<C>(block_sum + i));
  }
}

// One worker's memory.
template <typename T, int HEAD_DIM>
struct Scratch {
  using S = Shape<T, HEAD_DIM>;
  using C = typename S::C;
  C* k_pack;
  C* v_pack;
  C* s_tile;
  C* q_tile;
  C* o_acc;
  C* row_sum;
  double* row_max;
  int64_t packed_pair = -1;  // what k_pack and v_pack hold
  int64_t packed_from = 0;
  int64_t packed_keys = 0;

  static constexpr int64_t K_PACK = S::BLOCK_N * HEAD_DIM;
  static constexpr int64_t V_PACK = S::BLOCK_N * S::PADDED_DIM;
  static constexpr int64_t S_TILE = TILE_ROWS * S::BLOCK_N;

  static constexpr int64_t bytes(int64_t rows) {
    const int64_t elements =
        K_PACK + V_PACK + S_TILE + rows / TILE_ROWS * S::STATE_ROWS + 2 * rows * S::PADDED_DIM;
    return elements * int64_t(sizeof(C)) + rows * int64_t(sizeof(double)) + CACHE_LINE;  // to align the start
  }

  Scratch(char* memory, int64_t rows) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(memory);
    C* next = reinterpret_cast<C*>(memory + (CACHE_LINE - start % CACHE_LINE) % CACHE_LINE);
    k_pack = next, next += K_PACK;
    v_pack = next, next += V_PACK;
    s_tile = next, next += S_TILE;
    row_sum = next, next += rows / TILE_ROWS * S::STATE_ROWS;
    q_tile = next, next += rows * S::PADDED_DIM;
    o_acc = next, next += rows * S::PADDED_DIM;
    row_max = reinterpret_cast<double*>(next);
  }
};

// Attention of query rows [row_begin, row_end) of one (batch, kv head). `task_keys` is the number of
// keys that the task's last row sees: blocks are packed that far, once for all chunks of a task.
template <typename T, typename Out, int HEAD_DIM, bool SCALED>
void attend(const Plan& plan, Scratch<T, HEAD_DIM>& scratch, int64_t pair, int64_t row_begin, int64_t row_end,
            int64_t task_keys) {
  using S = Shape<T, HEAD_DIM>;
  using C = typename S::C;
  const AttentionParams& p = *plan.params;
  const int64_t b = pair / p.num_kv_heads;
  const int64_t kv_head = pair % p.num_kv_heads;
  const int64_t group_size = plan.group_size;
  const int64_t rows = row_end - row_begin;
  const int64_t padded_rows = round_up(rows, TILE_ROWS);
  const T* q = static_cast<const T*>(p.q) + b * p.q_stride[0];
  const T* k = static_cast<const T*>(p.k) + b * p.k_stride[0] + kv_head * p.k_stride[2];
  const T* v = static_cast<const T*>(p.v) + b * p.v_stride[0] + kv_head * p.v_stride[2];
  const float k_scale = SCALED ? p.k_scale[kv_head * p.k_scale_stride] : 1.0f;
  const float v_scale = SCALED ? p.v_scale[kv_head * p.v_scale_stride] : 1.0f;
  const C scale = C(p.softmax_scale * LOG2_E);  // exponentials are powers of 2

  int64_t t = row_begin / group_size;
  int64_t g = row_begin % group_size;
  for (int64_t r = 0; r < padded_rows; ++r) {
    C* row = scratch.q_tile + r * S::PADDED_DIM;
    if (r < rows) {
      const int64_t head = kv_head * group_size + g;
      const float q_scale = SCALED ? p.q_scale[head * p.q_scale_stride] : 1.0f;
      load_row<T, HEAD_DIM, SCALED>(q + t * p.q_stride[1] + head * p.q_stride[2], p.q_stride[3], q_scale,
                                    row);
      if (++g == group_size) g = 0, ++t;
    } else {
      for (int d = 0; d < HEAD_DIM; ++d) row[d] = C(0);
    }
  }
  for (int64_t r = 0; r < padded_rows; ++r) scratch.row_max[r] = -__builtin_inf();
  for (int64_t i = 0; i < padded_rows / TILE_ROWS * S::STATE_ROWS; ++i) scratch.row_sum[i] = C(0);

  const int64_t last_visible = visible_keys(p, (row_end - 1) / group_size);
  for (int64_t n0 = 0; n0 < last_visible; n0 += S::BLOCK_N) {
    const int64_t packed_keys = least(S::BLOCK_N, task_keys - n0);
    if (scratch.packed_pair != pair || scratch.packed_from != n0 || scratch.packed_keys < packed_keys) {
      pack_keys<T, HEAD_DIM, SCALED>(k + n0 * p.k_stride[1], p.k_stride[1], p.k_stride[3], k_scale,
                                     int(packed_keys), scratch.k_pack);
      pack_rows<T, HEAD_DIM, SCALED>(v + n0 * p.v_stride[1], p.v_stride[1], p.v_stride[3], v_scale,
                                     packed_keys, scratch.v_pack);
      scratch.packed_pair = pair;
      scratch.packed_from = n0;
      scratch.packed_keys = packed_keys;
    }
    for (int64_t r = 0; r < rows; r += TILE_ROWS) {
      int visible[TILE_ROWS];
      int64_t row_t = (row_begin + r) / group_size;
      int64_t row_g = (row_begin + r) % group_size;
      for (int i = 0; i < TILE_ROWS; ++i) {
        visible[i] = int(most(0, least(S::BLOCK_N, visible_keys(p, row_t) - n0)));
        if (r + i + 1 < rows && ++row_g == group_size) row_g = 0, ++row_t;  // padding repeats the last row
      }
      if (visible[TILE_ROWS - 1] == 0) continue;
      alignas(CACHE_LINE) C alpha[S::STATE_ROWS];
      const int64_t state = r / TILE_ROWS * S::STATE_ROWS;
      multiply_qk<T, HEAD_DIM>(scratch.q_tile + r * S::PADDED_DIM, scratch.k_pack, visible[TILE_ROWS - 1],
                               scratch.s_tile);
      softmax_tile<T, HEAD_DIM>(scratch.q_tile + r * S::PADDED_DIM, scratch.k_pack, scratch.s_tile, visible,
                                scale, scratch.row_max + r, scratch.row_sum + state, alpha);
      C* o = scratch.o_acc + r * S::PADDED_DIM;
      constexpr int WHOLE = S::DIM_VECTORS / TILE_VECTORS * TILE_VECTORS;
      for (int j = 0; j < WHOLE; j += TILE_VECTORS) {
        multiply_pv<T, HEAD_DIM, TILE_VECTORS>(scratch.s_tile, scratch.v_pack + j * S::WIDTH, visible, alpha,
                                               n0 == 0, o + j * S::WIDTH);
      }
      if constexpr (WHOLE < S::DIM_VECTORS) {
        multiply_pv<T, HEAD_DIM, S::DIM_VECTORS - WHOLE>(scratch.s_tile, scratch.v_pack + WHOLE * S::WIDTH,
                                                         visible, alpha, n0 == 0, o + WHOLE * S::WIDTH);
      }
    }
  }

  t = row_begin / group_size;
  g = row_begin % group_size;
  Out* out = static_cast<Out*>(p.out) + (b * p.seqlen_q * p.num_heads + kv_head * group_size) * HEAD_DIM;
  for (int64_t r = 0; r < rows; ++r) {
    const C* o = scratch.o_acc + r * S::PADDED_DIM;
    const C sum = scratch.row_sum[r / TILE_ROWS * S::STATE_ROWS + r % TILE_ROWS];
    Out* __restrict out_row = out + (t * p.num_heads + g) * HEAD_DIM;
    for (int d = 0; d < HEAD_DIM; ++d) narrow(o[d] / sum, out_row + d);
    if (++g == group_size) g = 0, ++t;
  }
}

// What every thread runs: pulls tasks until none is left. The range that parallel_for hands over is
// only a number of workers.
template <typename T, typename Out, int HEAD_DIM, bool SCALED>
void work(int64_t, int64_t, void* context) {
  Plan& plan = *static_cast<Plan*>(context);
  alignas(CACHE_LINE) char stack[STACK_BYTES];
  char* memory = stack;
  if (plan.scratch_bytes > STACK_BYTES) {
    memory = static_cast<char*>(std::malloc(size_t(plan.scratch_bytes)));
    if (!memory) return;  // its share goes to the others
  }
  Scratch<T, HEAD_DIM> scratch(memory, plan.chunk_rows);
  for (;;) {
    const int64_t task = __atomic_fetch_add(&plan.next_task, 1, __ATOMIC_RELAXED);
    if (task >= plan.num_tasks) break;
    // Pair by pair, so that the workers share its keys in the outer caches; the longest rows of a pair
    // first, so that the shortest tasks of all come last and even out the ends.
    const int64_t pair = task / plan.tasks_per_pair;
    const int64_t row_begin = (plan.tasks_per_pair - 1 - task % plan.tasks_per_pair) * plan.task_rows;
    const int64_t row_end = least(plan.rows, row_begin + plan.task_rows);
    const int64_t task_keys = visible_keys(*plan.params, (row_end - 1) / plan.group_size);
    for (int64_t r = row_begin; r < row_end; r += plan.chunk_rows) {
      attend<T, Out, HEAD_DIM, SCALED>(plan, scratch, pair, r, least(row_end, r + plan.chunk_rows),
                                       task_keys);
    }
  }
  if (memory != stack) std::free(memory);
}

// Cuts the work: one task is some rows of one (batch, kv head).
template <typename T, typename Out, int HEAD_DIM, bool SCALED>
int32_t forward(const AttentionParams& p, const HostContext& host) {
  using S = Shape<T, HEAD_DIM>;
  const int64_t elements = p.batch * p.seqlen_q * p.num_heads * HEAD_DIM;
  if (elements == 0) return 0;
  if (p.seqlen_k == 0) {  // no key to average: zeros, as the sum over nothing is
    __builtin_memset(p.out, 0, size_t(elements) * sizeof(Out));
    return 0;
  }
  Plan plan{};
  plan.params = &p;
  plan.group_size = p.num_heads / p.num_kv_heads;
  plan.rows = p.seqlen_q * plan.group_size;
  const int64_t pairs = p.batch * p.num_kv_heads;
  const int64_t threads = most(1, host.num_threads);
  const int64_t keys = visible_keys(p, p.seqlen_q - 1);

  // With a single block of keys the packs outlive a chunk of rows, so small chunks cost nothing; with
  // several, every chunk packs them anew, and more rows share that. About 3 tasks a thread even out.
  constexpr int64_t SMALL_CHUNK = 4 * TILE_ROWS;
  constexpr int64_t LARGE_CHUNK = 32 * TILE_ROWS;
  const bool one_block = keys <= S::BLOCK_N;
  const int64_t fair_rows = round_up(divide_up(plan.rows * pairs, 3 * threads), SMALL_CHUNK);
  const int64_t most_rows = one_block ? fair_rows : least(fair_rows, LARGE_CHUNK);
  plan.task_rows = round_up(divide_up(plan.rows, divide_up(plan.rows, most_rows)), TILE_ROWS);
  plan.chunk_rows = one_block ? least(plan.task_rows, SMALL_CHUNK) : plan.task_rows;
  plan.tasks_per_pair = divide_up(plan.rows, plan.task_rows);
  plan.num_tasks = plan.tasks_per_pair * pairs;
  plan.scratch_bytes = Scratch<T, HEAD_DIM>::bytes(plan.chunk_rows);

  // A sleeping thread takes microseconds to wake: what lasts no longer stays on this one.
  const double multiply_adds = double(plan.rows) * double(pairs) * double(keys) * HEAD_DIM;
  const int64_t workers = multiply_adds < 3e5 ? 1 : least(threads, plan.num_tasks);
  auto* worker = &work<T, Out, HEAD_DIM, SCALED>;
  if (workers == 1) {
    worker(0, 1, &plan);
  } else if (host.parallel_for(0, workers, 1, worker, &plan) != 0) {
    return POOL_FAILED;
  }
  return plan.next_task < plan.num_tasks ? OUT_OF_MEMORY : 0;
}

}  // namespace
}  // namespace attention
