// What warps do together: share registers out (PTX ISA, setmaxnreg; sm_90a), and meet (barrier.cta).
#pragma once

namespace ptx {

// Takes registers from the pool, or gives them back, so that each thread has COUNT. Every warp of
// the warpgroup must come here.
template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Waits for THREADS threads, whole warps, at hardware barrier `bar` (1 to 15; __syncthreads() is 0).
template <int THREADS>
__device__ __forceinline__ void sync_threads(int bar) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(bar), "n"(THREADS) : "memory");
}

// Counts this thread at the barrier without waiting.
template <int THREADS>
__device__ __forceinline__ void arrive_threads(int bar) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(bar), "n"(THREADS) : "memory");
}

// Waits as well, and says whether any of the threads came with `holds`.
template <int THREADS>
__device__ __forceinline__ bool any_of(int bar, bool holds) {
  int any = 0;
  asm volatile(
      "{ .reg .pred mine, any; setp.ne.b32 mine, %2, 0; barrier.cta.red.or.pred any, %1, %3, mine; "
      "selp.b32 %0, 1, 0, any; }"
      : "=r"(any)
      : "r"(bar), "r"(static_cast<int>(holds)), "n"(THREADS)
      : "memory");
  return __shfl_sync(0xffffffffu, any, 0) != 0;  // known to be uniform: wgmma may depend on it
}

}  // namespace ptx
