// fp8_attn on the tensor cores of any GPU from sm_80 on, at fp32 accuracy; the other kernels where it does not serve.
//
// Algorithm, layout, launch and numerics: cuda/attention/tensor.cuh.
// Shapes and dtypes: as in portable.cu, but double; HEAD_DIM a multiple of 4.
// Requires: sm_80 or newer, any strides (rows that are contiguous and aligned for the tensor cores).
#include "cuda/attention/tensor.cuh"

namespace fp8_attn {

template <typename T, int HEAD_DIM, int GROUP_SIZE>
int32_t prepare() {
  return attention::TensorAttention<T, float, true, HEAD_DIM, GROUP_SIZE>::prepare();
}

template <typename T, int HEAD_DIM, int GROUP_SIZE>
int32_t launch(const AttentionParams& params, void* stream) {
  static_assert(HEAD_DIM >= 1 && HEAD_DIM <= 256, "head_dim must be from 1 to 256");
  return attention::TensorAttention<T, float, true, HEAD_DIM, GROUP_SIZE>::launch(params, stream);
}

}  // namespace fp8_attn
