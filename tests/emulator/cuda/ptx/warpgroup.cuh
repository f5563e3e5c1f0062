// Stands in for the header of this name.
#pragma once

namespace ptx {

template <int COUNT>
void take_registers() {}
template <int COUNT>
void give_registers() {}
template <int THREADS>
void sync_threads(int bar) {
  emulator::named_barrier(bar, THREADS, true);
}
template <int THREADS>
void arrive_threads(int bar) {
  emulator::named_barrier(bar, THREADS, false);
}
template <int THREADS>
bool any_of(int bar, bool holds) {
  return emulator::named_barrier(bar, THREADS, true, holds);
}

}  // namespace ptx
