// The one structure that crosses from a binding to a kernel library.
//
// A kernel library (one specialisation, CUDA or CPU) includes no torch header; a
// binding includes no CUDA header. Both include this file. Plain data only: its
// layout is part of the content digest of both sides.
#pragma once

#include <cstdint>

// One attention problem. Strides count elements, in the order batch, time, head,
// head_dim; any non-negative value is allowed. `out` is contiguous.
struct AttentionParams {
  const void* q;  // [batch, seqlen_q, num_heads, head_dim]
  const void* k;  // [batch, seqlen_k, num_kv_heads, head_dim]
  const void* v;  // [batch, seqlen_k, num_kv_heads, head_dim]
  void* out;      // [batch, seqlen_q, num_heads, head_dim]

  // fp8_attn: dequantisation scales, one per head; null for gqa_attn.
  const float* q_scale;
  const float* k_scale;
  const float* v_scale;
  int64_t q_scale_stride;
  int64_t k_scale_stride;
  int64_t v_scale_stride;

  int64_t batch;
  int64_t seqlen_q;
  int64_t seqlen_k;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;

  int64_t q_stride[4];
  int64_t k_stride[4];
  int64_t v_stride[4];

  double softmax_scale;  // 1 / sqrt(head_dim)

  // CUDA: device memory for the time of one launch, aligned to 256 bytes, from the allocator of the tensors and
  // in the order of their stream. At most one call a launch; null where there is none to be had.
  void* (*allocate)(void* allocator, int64_t bytes);
  void* allocator;
};

// Splits [begin, end) over torch's intra-op threads; body(lo, hi, context) runs on
// disjoint pieces of at least `grain` items. Returns 0, or an error code when a
// body threw.
using ParallelFor = int32_t (*)(int64_t begin, int64_t end, int64_t grain,
                                void (*body)(int64_t, int64_t, void*), void* context);

// What a CPU kernel library gets as its execution context; a CUDA one gets its stream.
struct HostContext {
  ParallelFor parallel_for;
  int32_t num_threads;
};

// Every kernel library exports these C functions (the JIT appends them to the source):
//   int32_t kernel_prepare();                                     load on the current device; 0 or an error code
//   int32_t kernel_launch(const AttentionParams*, void* context); context: cudaStream_t, or const HostContext*
//   const char* kernel_error_string(int32_t code);
