// gqa_attn on the CPU: causal grouped-query attention forward, vectorised, all cores.
//
// Algorithm, Layout, Numerics, Work: cpu/attention/vectorised.h.
// Shapes and dtypes: q [batch, seqlen_q, num_heads, HEAD_DIM]; k, v [batch, seqlen_k, num_kv_heads,
//   HEAD_DIM]; T is float, double, Half or BFloat16; out has the type of q. The group size is a
//   run-time value.
#include "cpu/attention/vectorised.h"

namespace gqa_attn {

template <typename T, int HEAD_DIM>
int32_t launch(const AttentionParams& params, void* host_context) {
  return attention::forward<T, T, HEAD_DIM, false>(params, *static_cast<const HostContext*>(host_context));
}

template <typename T, int HEAD_DIM>
int32_t prepare() {
  return 0;
}

}  // namespace gqa_attn
