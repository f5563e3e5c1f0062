// Stands in for the header of this name.
#pragma once

namespace ptx {

// Element `odd` of a pair of bfloat16.
inline float of_pair(uint32_t pair, int odd) { return __uint_as_float((odd ? pair >> 16 : pair & 0xffff) << 16); }

// Lane 4 * g + t gives a[0], a[1] = A[g], A[g + 8] at k = 2t, 2t + 1, b[0] = B at the same k, column g; K = 16: a[2],
// a[3] and b[1] the same 8 further.
template <int K>
void multiply(float (&d)[4], const uint32_t* a, const uint32_t* b) {
  struct Registers {
    uint32_t a[4], b[2];
  } mine = {}, all[32];
  std::copy(a, a + K / 4, mine.a);
  std::copy(b, b + K / 8, mine.b);
  emulator::exchange(mine, all);
  const int lane = static_cast<int>(emulator::block->current->lane), g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * t + i % 2;
    double sum = d[i];
    for (int k = 0; k < K; ++k)
      sum += static_cast<double>(of_pair(all[g * 4 + k % 8 / 2].a[k / 8 * 2 + i / 2], k % 2)) *
             of_pair(all[column * 4 + k % 8 / 2].b[k / 8], k % 2);
    d[i] = static_cast<float>(sum);
  }
}
inline void mma_k16(float (&d)[4], uint2 upper, uint2 lower, uint2 b) {
  const uint32_t all[4] = {upper.x, lower.x, upper.y, lower.y}, both[2] = {b.x, b.y};
  multiply<16>(d, all, both);
}
inline void mma_k8(float (&d)[4], uint32_t upper, uint32_t lower, uint32_t b) {
  const uint32_t both[2] = {upper, lower};
  multiply<8>(d, both, &b);
}

}  // namespace ptx
