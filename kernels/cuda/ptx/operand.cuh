// How wgmma is told of an operand in shared memory (PTX ISA, matrix descriptor, 128-byte swizzle; sm_90a).
#pragma once

#include <cstdint>

namespace ptx {

// An operand in shared memory as the tensor cores are told of it: rows of 128 bytes in groups of
// eight, 16-byte chunk c of row r at place c ^ (r % 8); eight rows further is 1024 bytes further. For
// an operand whose rows run along N, the next 64 columns are `column_stride` bytes further.
struct Operand {
  uint32_t low;
  uint32_t high;

  __device__ __forceinline__ Operand(uint32_t smem_address, int column_stride)
      : low((smem_address & 0x3ffff) / 16 | static_cast<uint32_t>(column_stride / 16) << 16), high(1u << 30 | 1024 / 16) {}

  // The descriptor of what lies `bytes` further.
  __device__ __forceinline__ uint64_t at(int bytes) const {
    return static_cast<uint64_t>(high) << 32 | (low + static_cast<uint32_t>(bytes) / 16);
  }
};

}  // namespace ptx
