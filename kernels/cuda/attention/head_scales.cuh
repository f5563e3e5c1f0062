// The scales of fp8_attn: an operand is its elements times the scale of its head.
#pragma once

#include <cstdint>

#include "bindings/attention_params.h"

namespace attention {

struct HeadScales {
  float q, k, v;
};

// The scales of every head, as a kernel's argument.
struct ScaleArguments {
  const float* q;
  const float* k;
  const float* v;
  int64_t q_stride;
  int64_t k_stride;
  int64_t v_stride;

  __host__ __forceinline__ static ScaleArguments from(const AttentionParams& p) {
    return {p.q_scale, p.k_scale, p.v_scale, p.q_scale_stride, p.k_scale_stride, p.v_scale_stride};
  }
  __device__ __forceinline__ HeadScales of(int64_t head) const {
    return {q[head * q_stride], k[head * k_stride], v[head * v_stride]};
  }
};

}  // namespace attention
