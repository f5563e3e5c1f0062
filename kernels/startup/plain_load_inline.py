"""The usual way to one attention kernel, timed: ``python -m kernels.startup.plain_load_inline cpu``.

Grouped-query attention as most people write a first extension: ``torch/extension.h``
in every file, ``load_inline`` with its defaults. The yardstick for what the toolkit's
own build takes; nothing else uses it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time

CPP_SOURCE = """
#include <torch/extension.h>
#include <ATen/Parallel.h>
#include <cmath>
#include <vector>

torch::Tensor gqa_attn(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
  TORCH_CHECK(q.is_contiguous() && k.is_contiguous() && v.is_contiguous(), "inputs must be contiguous");
  const int64_t batch = q.size(0), seqlen = q.size(1), num_heads = q.size(2), head_dim = q.size(3);
  const int64_t num_kv_heads = k.size(2), group_size = num_heads / num_kv_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  auto out = torch::empty_like(q);
  const float* Q = q.data_ptr<float>();
  const float* K = k.data_ptr<float>();
  const float* V = v.data_ptr<float>();
  float* O = out.data_ptr<float>();
  at::parallel_for(0, batch * seqlen * num_heads, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> p(seqlen);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t h = i % num_heads, t = i / num_heads % seqlen, b = i / num_heads / seqlen;
      const float* q_row = Q + i * head_dim;
      float largest = -INFINITY, sum = 0.0f;
      for (int64_t s = 0; s <= t; ++s) {
        const float* k_row = K + ((b * seqlen + s) * num_kv_heads + h / group_size) * head_dim;
        float dot = 0.0f;
        for (int64_t d = 0; d < head_dim; ++d) dot += q_row[d] * k_row[d];
        p[s] = dot * scale;
        largest = std::max(largest, p[s]);
      }
      for (int64_t s = 0; s <= t; ++s) sum += p[s] = std::exp(p[s] - largest);
      float* o_row = O + i * head_dim;
      for (int64_t d = 0; d < head_dim; ++d) o_row[d] = 0.0f;
      for (int64_t s = 0; s <= t; ++s) {
        const float* v_row = V + ((b * seqlen + s) * num_kv_heads + h / group_size) * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) o_row[d] += p[s] / sum * v_row[d];
      }
    }
  });
  return out;
}
"""

CUDA_DECLARATION = "torch::Tensor gqa_attn(torch::Tensor q, torch::Tensor k, torch::Tensor v);"

CUDA_SOURCE = """
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cmath>

// One block per (batch, row, head), one thread per element of the head; the scores are in shared memory.
__global__ void gqa_attn_kernel(const float* Q, const float* K, const float* V, float* O, int seqlen,
                                int num_heads, int num_kv_heads, int head_dim, float scale) {
  extern __shared__ float p[];
  const int h = blockIdx.x % num_heads, t = blockIdx.x / num_heads % seqlen;
  const int b = blockIdx.x / num_heads / seqlen;
  const int kv_head = h / (num_heads / num_kv_heads);
  const float* q_row = Q + (size_t)blockIdx.x * head_dim;
  for (int s = threadIdx.x; s <= t; s += blockDim.x) {
    const float* k_row = K + ((size_t)(b * seqlen + s) * num_kv_heads + kv_head) * head_dim;
    float dot = 0.0f;
    for (int d = 0; d < head_dim; ++d) dot += q_row[d] * k_row[d];
    p[s] = dot * scale;
  }
  __syncthreads();
  float largest = -INFINITY, sum = 0.0f;
  for (int s = 0; s <= t; ++s) largest = fmaxf(largest, p[s]);
  for (int s = 0; s <= t; ++s) sum += expf(p[s] - largest);
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float o = 0.0f;
    for (int s = 0; s <= t; ++s)
      o += expf(p[s] - largest) * V[((size_t)(b * seqlen + s) * num_kv_heads + kv_head) * head_dim + d];
    O[(size_t)blockIdx.x * head_dim + d] = o / sum;
  }
}

torch::Tensor gqa_attn(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
  TORCH_CHECK(q.is_cuda() && k.is_cuda() && v.is_cuda(), "inputs must be on a CUDA device");
  TORCH_CHECK(q.is_contiguous() && k.is_contiguous() && v.is_contiguous(), "inputs must be contiguous");
  const int batch = q.size(0), seqlen = q.size(1), num_heads = q.size(2), head_dim = q.size(3);
  auto out = torch::empty_like(q);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  gqa_attn_kernel<<<batch * seqlen * num_heads, 64, seqlen * sizeof(float), stream>>>(
      q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), out.data_ptr<float>(), seqlen, num_heads,
      k.size(2), head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim)));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", choices=("cpu", "cuda"))
    arguments = parser.parse_args()

    import torch

    on_cuda = arguments.device == "cuda"
    # Without a GPU (and with TORCH_CUDA_ARCH_LIST set) the build is timed and nothing is called.
    callable_here = not on_cuda or torch.cuda.is_available()
    q = torch.randn(2, 80, 8, 32, device=arguments.device if callable_here else "cpu")
    k, v = torch.randn(2, 2, 80, 2, 32, device=q.device)
    if q.is_cuda:
        torch.cuda.synchronize()

    started = time.perf_counter()
    from torch.utils.cpp_extension import load_inline

    if on_cuda:
        extension = load_inline(
            "plain_gqa_attn", cpp_sources=CUDA_DECLARATION, cuda_sources=CUDA_SOURCE, functions=["gqa_attn"]
        )
    else:
        extension = load_inline(
            "plain_gqa_attn", cpp_sources=CPP_SOURCE, functions=["gqa_attn"], extra_cflags=["-O3"]
        )
    out = extension.gqa_attn(q, k, v) if callable_here else None
    if q.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started

    if out is not None:
        error = (out - _attention(q, k, v)).abs().max().item()
        if not error < 1e-4:
            sys.exit(f"the plain kernel is wrong by {error:.3g}")
    print(json.dumps({"seconds": seconds}))


def _attention(q, k, v):
    """The same in torch: [batch, seqlen, num_heads, head_dim]."""
    import torch

    group_size = q.shape[2] // k.shape[2]
    queries, keys, values = (
        x.transpose(1, 2) for x in (q, k.repeat_interleave(group_size, 2), v.repeat_interleave(group_size, 2))
    )
    logits = queries @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.ones_like(logits, dtype=torch.bool).triu(1)
    return (torch.softmax(logits.masked_fill(hidden, -math.inf), -1) @ values).transpose(1, 2)


if __name__ == "__main__":
    main()
