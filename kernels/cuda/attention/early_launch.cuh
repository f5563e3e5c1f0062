// Programmatic dependent launch, the host's side: a kernel whose blocks may start while the one before it ends.
#pragma once

#include "cuda/ptx/dependent_launch.cuh"

namespace attention {

// The architecture this library is compiled for, as in __CUDA_ARCH__, also where the host code is
// compiled. One library serves one architecture.
constexpr int ARCHS[] = {__CUDA_ARCH_LIST__};
constexpr int ARCH = ARCHS[0];
static_assert(sizeof(ARCHS) == sizeof(int), "compile for one architecture at a time");

#ifdef __CUDACC__  // not where the emulator compiles this
// cuLaunchKernelEx and what it takes, as in cuda.h, which takes longer to read than all the rest. Its attributes are
// those of the runtime.
struct DriverConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned smem_bytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attributes;
  unsigned num_attributes;
};
using DriverLaunch = int (*)(const DriverConfig*, cudaKernel_t, void** parameters, void** extra);

// Null where this driver has none.
inline DriverLaunch driver_launch() {
  static const DriverLaunch function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuLaunchKernelEx", &found, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<DriverLaunch>(error == cudaSuccess && result == cudaDriverEntryPointSuccess ? found : nullptr);
  }();
  return function;
}

// KERNEL as the driver knows it, on every device; null where there is none.
template <auto KERNEL>
cudaKernel_t driver_kernel() {
  static const cudaKernel_t kernel = [] {
    cudaKernel_t found = nullptr;
    return cudaGetKernel(&found, reinterpret_cast<const void*>(KERNEL)) == cudaSuccess ? found : nullptr;
  }();
  return kernel;
}
#endif

// Launches a kernel that calls ptx::wait_for_previous_kernel() before it reads or writes anything of others'. Before
// sm_90 an ordinary launch. By the driver's own function: the runtime's looks the kernel up at every call.
template <auto KERNEL, typename... PARAMETERS>
cudaError_t launch_early(dim3 grid, int threads, int smem_bytes, cudaStream_t stream, const PARAMETERS&... arguments) {
  [[maybe_unused]] constexpr void (*TYPED)(PARAMETERS...) = KERNEL;  // the driver would believe any arguments
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  constexpr int NUM_ATTRIBUTES = ARCH >= 900 ? 1 : 0;
#ifdef __CUDACC__
  const cudaKernel_t kernel = driver_kernel<KERNEL>();
  if (const DriverLaunch launch = driver_launch(); launch != nullptr && kernel != nullptr) {
    const DriverConfig config = {{grid.x, grid.y, grid.z}, {static_cast<unsigned>(threads), 1, 1},
                                 static_cast<unsigned>(smem_bytes), stream, &early, NUM_ATTRIBUTES};
    void* parameters[] = {const_cast<PARAMETERS*>(&arguments)...};
    const cudaError_t error = static_cast<cudaError_t>(launch(&config, kernel, parameters, nullptr));  // one numbering
    // A thread's first call may find it without a context, which the runtime sees to.
    if (error != cudaErrorDeviceUninitialized) return error;
  }
#endif
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(smem_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = NUM_ATTRIBUTES;
  return cudaLaunchKernelEx(&config, KERNEL, arguments...);
}

}  // namespace attention
