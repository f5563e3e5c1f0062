// Runs CUDA kernels on the CPU, slowly: the thread blocks of a launch one after the other, the threads of a
// block as coroutines in one thread. Included before every other file of a kernel library.
//
// A coroutine goes on until it waits: at a barrier, in a warp operation, for a copy. Which one goes on then is
// drawn from a seeded generator. What a GPU does beside its threads (bulk copies, cp.async, wgmma) waits in
// queues and happens at a drawn moment, at the latest when a thread waits for it, so that a missing wait or
// a buffer given back too early shows as a wrong result. Shared memory starts as NaN, and is watched for
// writes past its end. A block in which every thread waits for another, or that ends before its copies, ends the
// program with a message.
//
// The headers in cuda/ptx/ beside this file stand in for those of the kernels; tests/emulation.py
// rewrites what remains (launches, declarations of dynamic shared memory).
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <type_traits>
#include <unordered_map>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // of a block: blocks run one after the other

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;  // set whenever a thread goes on
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulator {

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulator: %s\n", what);
  std::abort();
}

// Work beside the threads: queues, in each of which one thing happens after the other.
struct Queue {
  std::deque<std::function<bool()>> work;  // returns false when it cannot happen yet
  bool is_late = false;                    // happens only when every thread waits
  bool run_one() {
    if (work.empty() || !work.front()()) return false;
    work.pop_front();
    return true;
  }
};

struct NamedBarrier {
  int arrived = 0;
  int generation = 0;
  bool any = false;
  bool result[2] = {};
};

struct Warp {
  unsigned char slots[2][32][32] = {};
  int arrived = 0;
  int generation = 0;
};

struct Thread {
  ucontext_t context;
  dim3 index;
  unsigned lane = 0;
  Warp* warp = nullptr;
  Queue copies;         // cp.async
  int wgmma_issued = 0;  // of its warpgroup
  std::vector<int> wgmma_groups;
  bool done = false;
};

struct Mbarrier {
  int expected = 0;
  int pending = 0;
  int64_t bytes = 0;
  int phase = 0;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  NamedBarrier named[16];
  std::unordered_map<const void*, Mbarrier> mbarriers;
  std::deque<Queue> bulk_copies;
  std::vector<std::shared_ptr<void>> warpgroups;  // of wgmma.cuh
  std::vector<std::function<bool()>> warpgroup_work;
  Thread* current = nullptr;
  ucontext_t scheduler;
  uint64_t progress = 0;
};

constexpr size_t STACK_BYTES = 128 << 10;
constexpr size_t SMEM_BYTES = 228 << 10;
constexpr size_t CANARY_BYTES = 1 << 10;
inline Block* block = nullptr;
inline std::mt19937_64 draw{1};
alignas(1024) inline unsigned char dynamic_smem[SMEM_BYTES + CANARY_BYTES];
inline int processors = 2;

inline void yield() { swapcontext(&block->current->context, &block->scheduler); }

// The current thread goes on once `holds` does.
template <typename HOLDS>
void wait_until(HOLDS holds) {
  while (!holds()) yield();
  ++block->progress;
}

// Lets some of what is beside the threads happen, late things aside.
inline void happen() {
  const auto maybe = [&](auto&& run) {
    while (draw() % 4 == 0 && run()) ++block->progress;
  };
  for (Queue& queue : block->bulk_copies)
    if (!queue.is_late) maybe([&] { return queue.run_one(); });
  for (Thread& thread : block->threads)
    if (!thread.copies.work.empty()) maybe([&] { return thread.copies.run_one(); });
  for (auto& work : block->warpgroup_work) maybe(work);
}
// Lets one thing happen, whatever can; returns false where nothing can.
inline bool happen_at_last() {
  std::vector<std::function<bool()>> all = block->warpgroup_work;
  for (Queue& queue : block->bulk_copies) all.push_back([&queue] { return queue.run_one(); });
  for (Thread& thread : block->threads)
    if (!thread.copies.work.empty()) all.push_back([&thread] { return thread.copies.run_one(); });
  std::shuffle(all.begin(), all.end(), draw);
  return std::any_of(all.begin(), all.end(), [](auto& run) { return run(); });
}

inline int named_barrier(int id, int threads, bool waits, bool holds = false) {
  NamedBarrier& bar = block->named[id];
  const int generation = bar.generation;
  bar.any = bar.any || holds;
  if (++bar.arrived == threads) {
    bar.result[generation % 2] = bar.any;
    bar.arrived = 0;
    bar.any = false;
    ++bar.generation;
    ++block->progress;
  } else if (bar.arrived > threads) {
    fail("more threads at a barrier than it expects");
  }
  if (waits) wait_until([&] { return bar.generation != generation; });
  return bar.result[generation % 2];
}

// Every lane of the warp gives `mine`; each then calls read(lane) on all.
template <typename T>
const T* exchange(T mine, T (&all)[32]) {
  static_assert(sizeof(T) <= 32, "some registers");
  Warp& warp = *block->current->warp;
  const int generation = warp.generation;
  std::memcpy(warp.slots[generation % 2][block->current->lane], &mine, sizeof(T));
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    ++warp.generation;
    ++block->progress;
  }
  wait_until([&] { return warp.generation != generation; });
  for (int i = 0; i < 32; ++i) std::memcpy(&all[i], warp.slots[generation % 2][i], sizeof(T));
  return all;
}

inline std::function<void()>* thread_body = nullptr;
inline void thread_main() {
  (*thread_body)();
  block->current->done = true;
  ++block->progress;
  yield();
}

inline void run_block(dim3 grid, dim3 index, unsigned threads, size_t smem_bytes, std::function<void()> body) {
  static std::vector<std::unique_ptr<unsigned char[]>> stacks;
  while (stacks.size() < threads) stacks.emplace_back(new unsigned char[STACK_BYTES]);
  if (threads % 32 != 0) fail("whole warps only");
  if (smem_bytes > SMEM_BYTES) fail("more shared memory than an SM has");
  std::memset(dynamic_smem, 0xff, sizeof(dynamic_smem));
  Block here;
  gridDim = grid;
  blockIdx = index;
  blockDim = dim3(threads);
  here.warps.resize(threads / 32);
  here.threads.resize(threads);
  here.warpgroups.resize((threads + 127) / 128);
  block = &here;
  thread_body = &body;
  for (unsigned i = 0; i < threads; ++i) {
    Thread& thread = here.threads[i];
    thread.index = dim3(i, 0, 0);
    thread.lane = i % 32;
    thread.warp = &here.warps[i / 32];
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = stacks[i].get();
    thread.context.uc_stack.ss_size = STACK_BYTES;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, thread_main, 0);
  }
  std::vector<unsigned> order(threads);
  for (unsigned i = 0; i < threads; ++i) order[i] = i;
  unsigned left = threads;
  int idle = 0;
  while (left > 0) {
    const uint64_t before = here.progress;
    // Neighbours mostly go on together: a shuffled order of warps, a turned one within.
    std::shuffle(order.begin(), order.end(), draw);
    left = 0;
    for (unsigned i : order) {
      if (here.threads[i].done) continue;
      here.current = &here.threads[i];
      threadIdx = here.current->index;
      swapcontext(&here.scheduler, &here.current->context);
      left += !here.threads[i].done;
      if (draw() % 64 == 0) happen();
    }
    if (here.progress != before) {
      idle = 0;
    } else if (!happen_at_last() && ++idle > 2) {
      fail("every thread waits for another");
    }
  }
  for (const Thread& thread : here.threads)
    if (!thread.copies.work.empty()) fail("a block ends before its copies");
  for (const Queue& queue : here.bulk_copies)
    if (!queue.work.empty()) fail("a block ends before its copies");
  while (happen_at_last()) {
  }
  for (size_t i = smem_bytes; i < sizeof(dynamic_smem); ++i)
    if (dynamic_smem[i] != 0xff) fail("a write past the end of shared memory");
  block = nullptr;
}

// What <<<>>> does.
template <typename... PARAMETERS, typename... ARGUMENTS>
void launch(void (*kernel)(PARAMETERS...), dim3 grid, unsigned threads, size_t smem_bytes, const ARGUMENTS&... arguments) {
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x)
        run_block(grid, dim3(x, y, z), threads, smem_bytes, [&] { kernel(arguments...); });
}

}  // namespace emulator

inline void __syncthreads() { emulator::named_barrier(0, static_cast<int>(blockDim.x), true); }
inline int __syncthreads_or(int holds) {
  return emulator::named_barrier(0, static_cast<int>(blockDim.x), true, holds != 0);
}
inline void __syncwarp() {
  int all[32];
  emulator::exchange(0, all);
}
template <typename T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  T all[32];
  return emulator::exchange(x, all)[emulator::block->current->lane ^ static_cast<unsigned>(mask)];
}
template <typename T>
T __shfl_sync(unsigned, T x, int lane) {
  T all[32];
  return emulator::exchange(x, all)[lane];
}
inline bool __any_sync(unsigned, bool holds) {
  bool all[32];
  emulator::exchange(holds, all);
  return std::any_of(all, all + 32, [](bool each) { return each; });
}
inline unsigned __ballot_sync(unsigned, bool holds) {
  bool all[32];
  emulator::exchange(holds, all);
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= static_cast<unsigned>(all[i]) << i;
  return result;
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t x) {
  uint32_t all[32];
  emulator::exchange(x, all);
  return *std::max_element(all, all + 32);
}
inline uint32_t __reduce_min_sync(unsigned, uint32_t x) {
  uint32_t all[32];
  emulator::exchange(x, all);
  return *std::min_element(all, all + 32);
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
// Rounded down. In long double the sum is exact but for bits that no float has.
inline float __fmaf_rd(float x, float y, float z) {
  const long double exact = static_cast<long double>(x) * y + z;
  const float nearest = static_cast<float>(exact);
  return nearest > exact ? std::nextafter(nearest, -INFINITY) : nearest;
}
template <typename T, typename VALUE>
T atomicAdd(T* target, VALUE value) {
  const T before = *target;
  *target += static_cast<T>(value);
  return before;
}
template <typename T, typename VALUE>
T atomicMin(T* target, VALUE value) {
  const T before = *target;
  *target = std::min(before, static_cast<T>(value));
  return before;
}
template <typename T, typename VALUE>
T atomicMax(T* target, VALUE value) {
  const T before = *target;
  *target = std::max(before, static_cast<T>(value));
  return before;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
template <typename TO, typename FROM>
TO bits_as(FROM from) {
  static_assert(sizeof(TO) == sizeof(FROM), "the same bits");
  TO to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline float __uint_as_float(uint32_t x) { return bits_as<float>(x); }
inline float __int_as_float(int32_t x) { return bits_as<float>(x); }
inline uint32_t __float_as_uint(float x) { return bits_as<uint32_t>(x); }
inline double __longlong_as_double(int64_t x) { return bits_as<double>(x); }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}
template <typename EACH>
uint32_t each_byte(uint32_t x, EACH each) {
  uint32_t result = 0;
  for (int i = 0; i < 32; i += 8) result |= static_cast<uint32_t>(each(static_cast<uint8_t>(x >> i))) << i;
  return result;
}
inline uint32_t __vneg4(uint32_t x) {
  return each_byte(x, [](uint8_t byte) { return static_cast<uint8_t>(-byte); });
}
inline uint32_t __vcmpeq4(uint32_t x, uint32_t y) {
  return each_byte(x ^ y, [](uint8_t byte) { return static_cast<uint8_t>(byte == 0 ? 0xff : 0); });
}

// The runtime, as far as launchers use it.
using cudaError_t = int;
using cudaStream_t = void*;
constexpr cudaError_t cudaSuccess = 0;
constexpr cudaError_t cudaErrorMemoryAllocation = 2;
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaFuncAttributes {};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = emulator::processors, cudaSuccess;
}
template <typename KERNEL>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, KERNEL) {
  return cudaSuccess;
}
template <typename KERNEL>
cudaError_t cudaFuncSetAttribute(KERNEL, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <typename... PARAMETERS, typename... ARGUMENTS>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(PARAMETERS...), const ARGUMENTS&... arguments) {
  emulator::launch(kernel, config->gridDim, config->blockDim.x, config->dynamicSmemBytes, arguments...);
  return cudaSuccess;
}
