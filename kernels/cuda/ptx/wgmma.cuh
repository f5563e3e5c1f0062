// Warpgroup matrix products (PTX ISA, wgmma; sm_90a): D [64][N] += A [64][16] * B [16][N], Half or
// BFloat16 operands, float accumulators; or int8 operands, 32 in place of 16, and int32 accumulators.
//
// Fragments, for lane 4 * g + t of warp w of the warpgroup. d[4 * i + 0, 1] are D[16 * w + g][8 * i +
// 2 * t, + 1], d[4 * i + 2, 3] the same of row + 8. a[0], a[1] are rows g and g + 8 at k = 2 * t, + 1;
// a[2], a[3] the same at k + 8. So neighbouring eights of D's columns are the A fragment of a
// product over them.
//
// A product runs on after it is issued. Between wgmma_fence() and wgmma_wait() its registers and its
// shared memory must be left alone; hold() keeps the compiler from moving accesses in there.
#pragma once

#include <cstdint>

#include "cuda/ptx/operand.cuh"

namespace ptx {

// Orders earlier accesses to registers before the products that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group of products.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Returns once all but the last PENDING groups are done.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Makes registers look written here.
template <int N>
__device__ __forceinline__ void hold(float (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int N>
__device__ __forceinline__ void hold(int32_t (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

#define PTX_D16 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define PTX_D32 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define PTX_D64 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define PTX_OUT8(as, d, i) \
  as(d[i]), as(d[i + 1]), as(d[i + 2]), as(d[i + 3]), as(d[i + 4]), as(d[i + 5]), as(d[i + 6]), as(d[i + 7])
#define PTX_OUT16(as, d, i) PTX_OUT8(as, d, i), PTX_OUT8(as, d, i + 8)
#define PTX_OUT32(as, d, i) PTX_OUT16(as, d, i), PTX_OUT16(as, d, i + 16)
#define PTX_OUT64(as, d, i) PTX_OUT32(as, d, i), PTX_OUT32(as, d, i + 32)

// A [64][16] and B [N][16] in shared memory, both with rows along k. Without ACCUMULATE, D = A * B.
#define PTX_SHARED(NAME, TYPE, COUNT, N, A, B, ADD)                                                                   \
  template <bool ACCUMULATE>                                                                                          \
  __device__ __forceinline__ void NAME(float (&d)[COUNT], uint64_t a, uint64_t b) {                                   \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE \
                 "." TYPE " " PTX_D##COUNT ", %" #A ", %" #B ", add, 1, 1, 0, 0; }"                                   \
                 : PTX_OUT##COUNT("+f", d, 0)                                                                         \
                 : "l"(a), "l"(b), "n"(ACCUMULATE ? 1 : 0));                                                          \
  }
PTX_SHARED(wgmma_shared, "f16", 16, 32, 16, 17, 18)
PTX_SHARED(wgmma_shared, "f16", 32, 64, 32, 33, 34)
PTX_SHARED(wgmma_shared, "f16", 64, 128, 64, 65, 66)
PTX_SHARED(wgmma_shared_bfloat16, "bf16", 16, 32, 16, 17, 18)
PTX_SHARED(wgmma_shared_bfloat16, "bf16", 32, 64, 32, 33, 34)
PTX_SHARED(wgmma_shared_bfloat16, "bf16", 64, 128, 64, 65, 66)
#undef PTX_SHARED

// The same for int8: A [64][32] and B [N][32], sums in int32.
template <bool ACCUMULATE>
__device__ __forceinline__ void wgmma_shared(int32_t (&d)[16], uint64_t a, uint64_t b) {
  asm volatile("{ .reg .pred add; setp.ne.b32 add, %18, 0; wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 " PTX_D16
               ", %16, %17, add; }"
               : PTX_OUT16("+r", d, 0)
               : "l"(a), "l"(b), "n"(ACCUMULATE ? 1 : 0));
}
template <bool ACCUMULATE>
__device__ __forceinline__ void wgmma_shared(int32_t (&d)[32], uint64_t a, uint64_t b) {
  asm volatile("{ .reg .pred add; setp.ne.b32 add, %34, 0; wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 " PTX_D32
               ", %32, %33, add; }"
               : PTX_OUT32("+r", d, 0)
               : "l"(a), "l"(b), "n"(ACCUMULATE ? 1 : 0));
}
template <bool ACCUMULATE>
__device__ __forceinline__ void wgmma_shared(int32_t (&d)[64], uint64_t a, uint64_t b) {
  asm volatile("{ .reg .pred add; setp.ne.b32 add, %66, 0; wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 " PTX_D64
               ", %64, %65, add; }"
               : PTX_OUT64("+r", d, 0)
               : "l"(a), "l"(b), "n"(ACCUMULATE ? 1 : 0));
}

// A [64][16] in registers, B [16][N] in shared memory with rows of N.
template <bool ACCUMULATE>
__device__ __forceinline__ void wgmma_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("{ .reg .pred add; setp.ne.b32 add, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " PTX_D32
               ", {%32, %33, %34, %35}, %36, add, 1, 1, 1; }"
               : PTX_OUT32("+f", d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ACCUMULATE ? 1 : 0));
}
template <bool ACCUMULATE>
__device__ __forceinline__ void wgmma_registers(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("{ .reg .pred add; setp.ne.b32 add, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " PTX_D64
               ", {%64, %65, %66, %67}, %68, add, 1, 1, 1; }"
               : PTX_OUT64("+f", d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ACCUMULATE ? 1 : 0));
}

#undef PTX_D16
#undef PTX_D32
#undef PTX_D64
#undef PTX_OUT8
#undef PTX_OUT16
#undef PTX_OUT32
#undef PTX_OUT64

}  // namespace ptx
