// Bulk copies by the copy engine (PTX ISA, cp.async.bulk; sm_90): contiguous bytes from global into
// shared memory, no tensor map.
#pragma once

#include "cuda/ptx/mbarrier.cuh"

namespace ptx {

// Starts a copy whose bytes `bar` counts. Both addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void bulk_copy(void* smem, const void* gmem, int bytes, Barrier* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(smem)),
               "l"(gmem), "r"(bytes), "r"(shared_address(bar))
               : "memory");
}

// Orders this thread's ordinary accesses to shared memory before later ones by the tensor cores and
// the copy engine; a barrier must follow for those of other threads.
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace ptx
