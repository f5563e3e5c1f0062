// Barriers in shared memory (PTX ISA, mbarrier; sm_90): a phase ends when all expected arrivals
// have come and all announced bytes have been copied.
#pragma once

#include <cstdint>

namespace ptx {

using Barrier = uint64_t;

__device__ __forceinline__ uint32_t shared_address(const void* smem) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(smem));
}

__device__ __forceinline__ void barrier_init(Barrier* bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}

// Arrives, and announces bytes that copies will bring in this phase.
__device__ __forceinline__ void barrier_arrive_expecting(Barrier* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
               : "memory");
}

// Arrives when the copies (cp.async) that this thread has started are done.
__device__ __forceinline__ void barrier_arrive_after_copies(Barrier* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
}

// Returns once the phase of this parity has ended. A new barrier is in phase 0: waiting for parity
// 1 returns at once.
__device__ __forceinline__ void barrier_wait(Barrier* bar, int parity) {
  uint32_t ended = 0;
  do {
    asm volatile(
        "{ .reg .pred ended; mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2; selp.u32 %0, 1, 0, ended; }"
        : "=r"(ended)
        : "r"(shared_address(bar)), "r"(parity)
        : "memory");
  } while (ended == 0);
}

}  // namespace ptx
