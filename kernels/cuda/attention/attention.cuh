// Which attention kernel serves a call: the choice made at launch, by shape and layout.
//
// Never by batch: a row's arithmetic must be the same alone and inside a batch.
#pragma once

#include "cuda/attention/portable.cuh"
#include "cuda/attention/short.cuh"

namespace attention {

// SKIPS_FINISHED: see portable_attention_kernel.
template <typename T, typename OUT, bool SCALED, int HEAD_DIM, int GROUP_SIZE, bool SKIPS_FINISHED = false>
struct Attention {
  // The short kernel needs the tensor cores of sm_80, fp32 arithmetic, and a head that fits.
  static constexpr bool HAS_SHORT = ARCH >= 800 && sizeof(typename AccumulatorOf<T>::type) == 4 &&
                                    HEAD_DIM <= SHORT_MAX_HEAD_DIM && HEAD_DIM % CHUNK == 0;
  using Portable = PortableKernel<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE, SKIPS_FINISHED>;

  // Loads the kernels on the current device. After this a launch may be captured in a graph.
  static int32_t prepare() {
    if constexpr (HAS_SHORT) {
      const cudaError_t error = ShortKernel<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE>::prepare();
      if (error != cudaSuccess) return error;
    }
    return Portable::prepare();
  }

  static int32_t launch(const AttentionParams& params, void* stream) {
    if constexpr (HAS_SHORT) {
      using Short = ShortKernel<T, OUT, SCALED, HEAD_DIM, GROUP_SIZE>;
      if (Short::serves(params)) return Short::launch(params, static_cast<cudaStream_t>(stream));
    }
    return Portable::launch(params, static_cast<cudaStream_t>(stream));
  }
};

}  // namespace attention
