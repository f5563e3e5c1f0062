// fp8_attn on the CPU: causal attention on quantised q, k and v with one scale per head, vectorised.
//
// Algorithm, Layout, Numerics, Work: cpu/attention/vectorised.h.
// Shapes and dtypes: q, k, v [batch, seqlen, num_heads, HEAD_DIM] of T: int8_t, uint8_t, Float8E4M3,
//   Float8E5M2, Half, BFloat16 or float; q_scale, k_scale, v_scale [num_heads] float; out float.
//   A value is float(x) * scale[head], computed while a block is packed: no dequantised tensor exists.
#include "cpu/attention/vectorised.h"

namespace fp8_attn {

template <typename T, int HEAD_DIM>
int32_t launch(const AttentionParams& params, void* host_context) {
  return attention::forward<T, float, HEAD_DIM, true>(params, *static_cast<const HostContext*>(host_context));
}

template <typename T, int HEAD_DIM>
int32_t prepare() {
  return 0;
}

}  // namespace fp8_attn
