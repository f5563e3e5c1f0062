// griddepcontrol: programmatic dependent launch, two kernels of a stream that overlap.
//
// Does nothing before sm_90.
// References: PTX ISA, griddepcontrol.
#pragma once

namespace ptx {

// Where the launch allows it (sm_90), a block starts while the kernel before it in the stream
// still runs. Nothing of that kernel may be read, and nothing written, before this.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The other side: a kernel launched that way may start once every block has come here.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace ptx
