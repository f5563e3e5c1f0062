// Stands in for the header of this name. A product waits until all 128 threads have issued it, and then for a
// drawn moment, or for wgmma_wait(); its operands are read, and its result written, at that moment. Sums of
// halves lose bits as on sm_90: the 16 products and the accumulator are cut off below 25 bits of the largest of them.
#pragma once

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/operand.cuh"

namespace ptx {

struct Product {
  bool accumulate = false;
  bool is_int8 = false;
  bool is_bfloat16 = false;
  int columns = 0;
  uint64_t a = 0, b = 0;
  void* d[128] = {};
  const uint32_t* a_registers[128] = {};
  int issued = 0;
};
struct Warpgroup {
  std::deque<Product> waiting;
  int done = 0;  // before waiting.front()
};

inline unsigned char* in_smem(uint64_t address) {
  if (address >= emulator::SMEM_BYTES) emulator::fail("an operand outside of shared memory");
  return emulator::dynamic_smem + (address ^ (address >> 7 & 7) << 4);
}
// Byte `byte` of row `row` of an operand with rows along k.
inline unsigned char* row_major(uint64_t descriptor, int row, int byte) {
  return in_smem((descriptor & 0x3fff) * 16 + row / 8 * (descriptor >> 32 & 0x3fff) * 16 + row % 8 * 128 + byte);
}
// Element `column` of row k, rows along N.
inline unsigned char* column_major(uint64_t descriptor, int k, int column) {
  return in_smem((descriptor & 0x3fff) * 16 + column / 64 * (descriptor >> 16 & 0x3fff) * 16 +
                 k / 8 * (descriptor >> 32 & 0x3fff) * 16 + k % 8 * 128 + column % 64 * 2);
}
inline float half_at(const unsigned char* p, bool is_bfloat16) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return is_bfloat16 ? bits_as<float>(static_cast<uint32_t>(bits) << 16) : half_to_float(bits);
}

// The exponent of a double, and the double without its bits below 2^last.
inline int exponent_of(double x) { return static_cast<int>(bits_as<uint64_t>(x) >> 52 & 0x7ff) - 1023; }
inline double cut(double x, int last) {
  const int spare = last - exponent_of(x) + 52;
  if (spare <= 0) return x;
  if (spare > 52) return 0;
  return bits_as<double>(bits_as<uint64_t>(x) >> spare << spare);
}
// accumulator + the sum of a[k] * b[k] over 16 halves, as the tensor cores form it.
inline float accumulate(float accumulator, const float* a, const float* b) {
  double terms[17] = {accumulator};
  int largest = exponent_of(accumulator);
  for (int k = 0; k < 16; ++k) {
    terms[k + 1] = static_cast<double>(a[k]) * b[k];
    largest = std::max(largest, exponent_of(terms[k + 1]));
  }
  if (largest == 1024 || largest == -1023) {  // not finite, or nothing
    for (int k = 0; k < 16; ++k) accumulator += a[k] * b[k];
    return accumulator;
  }
  double sum = 0;
  for (double term : terms) sum += cut(term, largest - 25);
  return static_cast<float>(cut(sum, exponent_of(sum) - 23));
}

inline void multiply(const Product& product) {
  if ((product.b >> 62) != 1) emulator::fail("a descriptor without the 128-byte swizzle");
  const int depth = product.is_int8 ? 32 : 16;
  std::vector<float> b(product.columns * depth);
  for (int n = 0; n < product.columns; ++n)
    for (int k = 0; k < depth; ++k) {
      const bool from_registers = product.a_registers[0] != nullptr;
      const unsigned char* p = from_registers ? column_major(product.b, k, n)
                                              : row_major(product.b, n, product.is_int8 ? k : 2 * k);
      b[n * depth + k] = product.is_int8 ? static_cast<int8_t>(*p) : half_at(p, product.is_bfloat16);
    }
  for (int row = 0; row < 64; ++row) {
    const int warp = row / 16, g = row % 8, lower = row % 16 / 8;
    float a[32];
    for (int k = 0; k < depth; ++k) {
      if (product.a_registers[0] != nullptr) {
        const uint32_t pair = product.a_registers[warp * 32 + g * 4 + k % 8 / 2][k / 8 * 2 + lower];
        a[k] = half_to_float(static_cast<uint16_t>(k % 2 ? pair >> 16 : pair));
      } else {
        const unsigned char* p = row_major(product.a, row, product.is_int8 ? k : 2 * k);
        a[k] = product.is_int8 ? static_cast<int8_t>(*p) : half_at(p, product.is_bfloat16);
      }
    }
    for (int n = 0; n < product.columns; ++n) {
      const int place = n / 8 * 4 + lower * 2 + n % 2;
      void* d = product.d[warp * 32 + g * 4 + n % 8 / 2];
      if (product.is_int8) {
        int32_t& target = static_cast<int32_t*>(d)[place];
        int32_t sum = product.accumulate ? target : 0;
        for (int k = 0; k < depth; ++k) sum += static_cast<int32_t>(a[k]) * static_cast<int32_t>(b[n * depth + k]);
        target = sum;
      } else {
        float& target = static_cast<float*>(d)[place];
        target = accumulate(product.accumulate ? target : 0.0f, a, &b[n * depth]);
      }
    }
  }
}

inline Warpgroup& warpgroup() {
  auto& place = emulator::block->warpgroups[threadIdx.x / 128];
  if (place == nullptr) {
    auto made = std::make_shared<Warpgroup>();
    place = made;
    emulator::block->warpgroup_work.push_back([made] {
      if (made->waiting.empty() || made->waiting.front().issued != 128) return false;
      if (made->waiting.front().columns != 0) multiply(made->waiting.front());
      made->waiting.pop_front();
      ++made->done;
      return true;
    });
  }
  return *static_cast<Warpgroup*>(place.get());
}

// The next entry of this thread's warpgroup, the same for all its threads.
inline Product& next_entry() {
  Warpgroup& here = warpgroup();
  const size_t place = emulator::block->current->wgmma_issued++ - here.done;
  while (here.waiting.size() <= place) here.waiting.emplace_back();
  ++here.waiting[place].issued;
  return here.waiting[place];
}

template <bool ACCUMULATE, typename D, int N>
void issue(D (&d)[N], uint64_t a, const uint32_t* a_registers, uint64_t b, bool is_bfloat16 = false) {
  if (!ACCUMULATE) std::memset(d, 0xff, sizeof(d));  // until the product is done
  Product& product = next_entry();
  const bool is_first = product.issued == 1;
  if (!is_first && (product.a != a || product.b != b || product.columns != 2 * N || product.accumulate != ACCUMULATE ||
                    product.is_bfloat16 != is_bfloat16))
    emulator::fail("the threads of a warpgroup issue different products");
  product.accumulate = ACCUMULATE;
  product.is_int8 = std::is_integral<D>::value;
  product.is_bfloat16 = is_bfloat16;
  product.columns = 2 * N;
  product.a = a;
  product.b = b;
  product.d[threadIdx.x % 128] = d;
  product.a_registers[threadIdx.x % 128] = a_registers;
}

inline void wgmma_fence() {}
inline void wgmma_commit() {
  emulator::block->current->wgmma_groups.push_back(emulator::block->current->wgmma_issued);
  next_entry();
}
template <int PENDING>
void wgmma_wait() {
  const auto& groups = emulator::block->current->wgmma_groups;
  if (groups.size() <= PENDING) return;
  const int last = groups[groups.size() - 1 - PENDING];
  Warpgroup& here = warpgroup();
  emulator::wait_until([&] {
    while (here.done <= last && emulator::block->warpgroup_work.size() > 0) {
      bool any = false;
      for (auto& work : emulator::block->warpgroup_work) any = (here.done <= last && work()) || any;
      if (!any) break;
    }
    return here.done > last;
  });
}
template <typename T, int N>
void hold(T (&registers)[N]) {
  asm volatile("" ::"r"(registers) : "memory");
}
template <bool ACCUMULATE, typename D, int N>
void wgmma_shared(D (&d)[N], uint64_t a, uint64_t b) {
  if ((a >> 62) != 1) emulator::fail("a descriptor without the 128-byte swizzle");
  issue<ACCUMULATE>(d, a, nullptr, b);
}
template <bool ACCUMULATE, int N>
void wgmma_shared_bfloat16(float (&d)[N], uint64_t a, uint64_t b) {
  if ((a >> 62) != 1) emulator::fail("a descriptor without the 128-byte swizzle");
  issue<ACCUMULATE>(d, a, nullptr, b, true);
}
template <bool ACCUMULATE, int N>
void wgmma_registers(float (&d)[N], const uint32_t (&a)[4], uint64_t b) {
  issue<ACCUMULATE>(d, 0, a, b);
}

}  // namespace ptx
