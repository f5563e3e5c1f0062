// mma.sync: a warp multiplies one 16 x 8 tile out of registers.
//
// Requires sm_80 or newer for bfloat16.
// References: PTX ISA, fragments of mma.m16n8k16 and mma.m16n8k8.
#pragma once

#include <cstdint>

namespace ptx {

// D += A B for one 16 x 8 tile and 16 (8) steps of k, bfloat16 pairs, float accumulators. Lane
// 4 * g + t holds rows g (`upper`) and g + 8 (`lower`) of A and column g of B at k = 2t, 2t + 1
// (and 2t + 8, 2t + 9), and D[g][2t], D[g][2t + 1], D[g + 8][2t], D[g + 8][2t + 1].
__device__ __forceinline__ void mma_k16(float (&d)[4], uint2 upper, uint2 lower, uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(upper.x), "r"(lower.x), "r"(upper.y), "r"(lower.y), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void mma_k8(float (&d)[4], uint32_t upper, uint32_t lower, uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(upper), "r"(lower), "r"(b));
}

}  // namespace ptx
