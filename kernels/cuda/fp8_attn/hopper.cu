// fp8_attn for Hopper: tensor cores at fp32 accuracy for long sequences, the other kernels for short ones.
//
// Algorithm, layout, launch, workspace and numerics: cuda/attention/hopper.cuh; what it leaves to others:
//   cuda/attention/attention.cuh.
// Shapes and dtypes: q, k and v [batch, seqlen, num_heads, HEAD_DIM] in their stored type: int8_t, uint8_t,
//   Float8E4M3, Float8E5M2, Half, BFloat16 or float; scales float [num_heads]; out float. Q K^T of int8 is exact, in
//   int8 on the tensor cores; the other 8-bit types and Half are exact in fp16. Scales are multiplied into the softmax
//   scale and the last division, so no dequantised tensor exists.
// FAST: as near as half precision; a variant of its own.
// Requires: sm_90a, HEAD_DIM 1 to 256, any strides.
#include "cuda/attention/hopper_launch.cuh"

namespace fp8_attn {

template <typename T, int HEAD_DIM, int GROUP_SIZE, bool FAST>
int32_t prepare() {
  return attention::HopperAttention<T, float, true, FAST, HEAD_DIM, GROUP_SIZE>::prepare();
}

template <typename T, int HEAD_DIM, int GROUP_SIZE, bool FAST>
int32_t launch(const AttentionParams& params, void* stream) {
  static_assert(HEAD_DIM >= 1 && HEAD_DIM <= 256, "head_dim must be from 1 to 256");
  return attention::HopperAttention<T, float, true, FAST, HEAD_DIM, GROUP_SIZE>::launch(params, stream);
}

}  // namespace fp8_attn
