// Fills the first head_dim elements of the output with head_dim, or VALUE where that is not zero.
#include "tiny_value.h"

#include "bindings/attention_params.h"

namespace tiny {

template <typename T, int HEAD_DIM>
__global__ void fill_kernel(T* out_gmem) {
  __shared__ T tile_smem[HEAD_DIM];
  tile_smem[threadIdx.x] = static_cast<T>(VALUE != 0 ? VALUE : HEAD_DIM);
  __syncthreads();
  out_gmem[threadIdx.x] = tile_smem[HEAD_DIM - 1 - threadIdx.x];
}

template <typename T, int HEAD_DIM>
int32_t launch(const AttentionParams& params, void* stream) {
  fill_kernel<T, HEAD_DIM><<<1, HEAD_DIM, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<T*>(params.out));
  return static_cast<int32_t>(cudaGetLastError());
}

template <typename T, int HEAD_DIM>
int32_t prepare() {
  cudaFuncAttributes attributes;
  return static_cast<int32_t>(cudaFuncGetAttributes(&attributes, fill_kernel<T, HEAD_DIM>));
}

}  // namespace tiny
