// fp8_attn for any CUDA GPU: the portable attention kernel with dequantisation on load.
//
// Algorithm, layout, launch and numerics: cuda/attention/portable.cuh.
// Shapes and dtypes: q, k and v [batch, seqlen, num_heads, HEAD_DIM] in their stored type:
//   int8_t, uint8_t, Float8E4M3, Float8E5M2, Half, BFloat16 or float; scales float [num_heads];
//   out float. Each element becomes float(x) * scale on its way into shared memory, so no
//   dequantised tensor exists and the rounding is the reference's.
// Requires: sm_75 or newer, HEAD_DIM 1 to 256, any strides.
#include "cuda/attention/attention.cuh"

namespace fp8_attn {

template <typename T, int HEAD_DIM, int GROUP_SIZE>
int32_t prepare() {
  return attention::Attention<T, float, true, HEAD_DIM, GROUP_SIZE>::prepare();
}

template <typename T, int HEAD_DIM, int GROUP_SIZE>
int32_t launch(const AttentionParams& params, void* stream) {
  static_assert(HEAD_DIM >= 1 && HEAD_DIM <= 256, "head_dim must be from 1 to 256");
  return attention::Attention<T, float, true, HEAD_DIM, GROUP_SIZE>::launch(params, stream);
}

}  // namespace fp8_attn
