// Stands in for the header of this name. Copies arrive in any order; until then their target is NaN.
#pragma once

#include "cuda/ptx/mbarrier.cuh"

namespace ptx {

inline void bulk_copy(void* smem, const void* gmem, int bytes, Barrier* bar) {
  const auto is_odd = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 != 0; };
  if (is_odd(smem) || is_odd(gmem) || bytes % 16 != 0) emulator::fail("a bulk copy that is not aligned to 16 bytes");
  std::memset(smem, 0xff, bytes);
  emulator::Queue queue;
  queue.is_late = emulator::draw() % 2 == 0;
  queue.work.push_back([=] {
    std::memcpy(smem, gmem, bytes);
    emulator::Mbarrier& state = state_of(bar);
    state.bytes -= bytes;
    settle(state);
    return true;
  });
  auto& queues = emulator::block->bulk_copies;
  while (!queues.empty() && queues.front().work.empty()) queues.pop_front();
  queues.push_back(queue);
}
inline void async_proxy_fence() {}

}  // namespace ptx
