// gqa_attn for any CUDA GPU: the portable attention kernel without scales.
//
// Algorithm, layout, launch and numerics: cuda/attention/portable.cuh.
// Shapes and dtypes: q [batch, seqlen_q, num_heads, HEAD_DIM], k and v [batch, seqlen_k,
//   num_heads / GROUP_SIZE, HEAD_DIM]; float, double, Half or BFloat16; out of the same type.
// Requires: sm_75 or newer, HEAD_DIM 1 to 256, any strides.
#include "cuda/attention/attention.cuh"

namespace gqa_attn {

template <typename T, int HEAD_DIM, int GROUP_SIZE>
int32_t prepare() {
  return attention::Attention<T, T, false, HEAD_DIM, GROUP_SIZE>::prepare();
}

template <typename T, int HEAD_DIM, int GROUP_SIZE>
int32_t launch(const AttentionParams& params, void* stream) {
  static_assert(HEAD_DIM >= 1 && HEAD_DIM <= 256, "head_dim must be from 1 to 256");
  return attention::Attention<T, T, false, HEAD_DIM, GROUP_SIZE>::launch(params, stream);
}

}  // namespace gqa_attn
