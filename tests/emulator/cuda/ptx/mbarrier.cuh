// Stands in for the header of this name.
#pragma once

namespace ptx {

using Barrier = uint64_t;

inline uint32_t shared_address(const void* smem) {
  const ptrdiff_t offset = static_cast<const unsigned char*>(smem) - emulator::dynamic_smem;
  if (offset < 0 || offset >= static_cast<ptrdiff_t>(emulator::SMEM_BYTES)) emulator::fail("no address in shared memory");
  return static_cast<uint32_t>(offset);
}

inline emulator::Mbarrier& state_of(Barrier* bar) {
  const auto found = emulator::block->mbarriers.find(bar);
  if (found == emulator::block->mbarriers.end()) emulator::fail("a barrier that was not initialised");
  return found->second;
}
inline void settle(emulator::Mbarrier& state) {
  if (state.pending != 0 || state.bytes != 0) return;
  state.phase ^= 1;
  state.pending = state.expected;
  ++emulator::block->progress;
}
inline void barrier_init(Barrier* bar, int arrivals) {
  shared_address(bar);
  emulator::block->mbarriers[bar] = {arrivals, arrivals, 0, 0};
}
inline void barrier_init_fence() {}
inline void barrier_arrive(Barrier* bar) {
  emulator::Mbarrier& state = state_of(bar);
  if (--state.pending < 0) emulator::fail("more arrivals than a barrier expects");
  settle(state);
}
inline void barrier_arrive_expecting(Barrier* bar, int bytes) {
  state_of(bar).bytes += bytes;
  barrier_arrive(bar);
}
inline void barrier_arrive_after_copies(Barrier* bar) {
  emulator::block->current->copies.work.push_back([bar] { return barrier_arrive(bar), true; });
}
inline void barrier_wait(Barrier* bar, int parity) {
  emulator::wait_until([&] { return state_of(bar).phase != parity; });
}

}  // namespace ptx
