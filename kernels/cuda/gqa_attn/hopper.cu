// gqa_attn for Hopper: tensor cores at fp32 accuracy for long sequences, the other kernels for short ones.
//
// Algorithm, layout, launch, workspace and numerics: cuda/attention/hopper.cuh; what it leaves to others:
//   cuda/attention/attention.cuh.
// Shapes and dtypes: q [batch, seqlen_q, num_heads, HEAD_DIM], k and v [batch, seqlen_k,
//   num_heads / GROUP_SIZE, HEAD_DIM]; float, Half or BFloat16; out of the same type.
// FAST: as near as half precision; a variant of its own.
// Requires: sm_90a, HEAD_DIM 1 to 256, any strides.
#include "cuda/attention/hopper_launch.cuh"

namespace gqa_attn {

template <typename T, int HEAD_DIM, int GROUP_SIZE, bool FAST>
int32_t prepare() {
  return attention::HopperAttention<T, T, false, FAST, HEAD_DIM, GROUP_SIZE>::prepare();
}

template <typename T, int HEAD_DIM, int GROUP_SIZE, bool FAST>
int32_t launch(const AttentionParams& params, void* stream) {
  static_assert(HEAD_DIM >= 1 && HEAD_DIM <= 256, "head_dim must be from 1 to 256");
  return attention::HopperAttention<T, T, false, FAST, HEAD_DIM, GROUP_SIZE>::launch(params, stream);
}

}  // namespace gqa_attn
