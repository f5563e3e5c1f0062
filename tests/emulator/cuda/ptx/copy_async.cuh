// Stands in for the header of this name. A thread's copies arrive in their order, at a drawn moment.
#pragma once

namespace ptx {

inline void start_copy(void* smem, const void* gmem, int bytes) {
  if (reinterpret_cast<uintptr_t>(smem) % bytes != 0 || reinterpret_cast<uintptr_t>(gmem) % bytes != 0)
    emulator::fail("cp.async that is not aligned to its size");
  std::memset(smem, 0xff, bytes);
  emulator::block->current->copies.work.push_back([=] { return std::memcpy(smem, gmem, bytes), true; });
}
template <int BYTES>
void copy_async(void* smem, const void* gmem, bool valid = true) {
  alignas(16) static const unsigned char zeros[16] = {};
  start_copy(smem, valid ? gmem : zeros, BYTES);
}
inline void copy_async(float* smem, const void* gmem, bool valid) { copy_async<16>(smem, gmem, valid); }
inline void prefetch_to_l2(const void* gmem) { static_cast<void>(*static_cast<const volatile char*>(gmem)); }
inline void wait_for_copies() {
  while (emulator::block->current->copies.run_one()) {
  }
}

}  // namespace ptx
