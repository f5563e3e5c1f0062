// Programmatic dependent launch, the host's side: a kernel whose blocks may start while the one before it ends.
#pragma once

#include "cuda/ptx/dependent_launch.cuh"

namespace attention {

// The architecture this library is compiled for, as in __CUDA_ARCH__, also where the host code is
// compiled. One library serves one architecture.
constexpr int ARCHS[] = {__CUDA_ARCH_LIST__};
constexpr int ARCH = ARCHS[0];
static_assert(sizeof(ARCHS) == sizeof(int), "compile for one architecture at a time");

// Launches a kernel that calls ptx::wait_for_previous_kernel() before it reads or writes anything of others'. Before
// sm_90 an ordinary launch.
template <typename... PARAMETERS>
cudaError_t launch_early(void (*kernel)(PARAMETERS...), dim3 grid, int threads, int smem_bytes, cudaStream_t stream,
                         const PARAMETERS&... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(smem_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = ARCH >= 900 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace attention
