// cp.async: copies from global to shared memory that need no register and no waiting thread.
//
// Requires sm_80 or newer.
// References: PTX ISA, cp.async and cp.async.wait_all.
#pragma once

#include <cstdint>

namespace ptx {

// Starts a copy of 16 bytes into shared memory; zeros where `valid` is false.
__device__ __forceinline__ void copy_async(float* smem, const void* gmem, bool valid) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(smem));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(gmem), "r"(valid ? 16 : 0)
               : "memory");
}

// Starts a copy of BYTES: 4, 8 or 16, to which both addresses are aligned.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* smem, const void* gmem) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(smem));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(gmem), "n"(BYTES) : "memory");
}

// The same; zeros where `valid` is false.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* smem, const void* gmem, bool valid) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(smem));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(gmem), "n"(BYTES), "r"(valid ? BYTES : 0)
               : "memory");
}

// Asks for the cache line at `gmem` to be brought as far as L2.
__device__ __forceinline__ void prefetch_to_l2(const void* gmem) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(gmem));
}

// Waits for the copies this thread has started.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace ptx
