// Which compiled kernel serves which request: a table filled on demand.
//
// The first call of a new specialisation finds no entry and asks the resolver, a
// function Python installs when it loads this library. The resolver compiles or
// loads the kernel library and hands back its C functions; every later call finds
// them here without touching Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "bindings/attention_params.h"
#include "bindings/tensor.h"

// The part of a call that decides which kernel library serves it. kernels/jit/resolver.py unpacks it.
struct KernelRequest {
  int32_t device_type;  // 0 CPU, 1 CUDA
  int32_t device_index;
  int32_t dtype;  // binding::Dtype
  int32_t head_dim;
  int32_t group_size;
  int32_t fast;     // 1 where a faster, less accurate kernel may serve, 0 elsewhere
  int32_t is_long;  // 1 on CUDA where head_dim is narrow and the sequences are long (attention.h), 0 elsewhere
};

struct KernelEntry {
  int32_t (*launch)(const AttentionParams* params, void* context);
  const char* (*error_string)(int32_t code);
  char error[2048];  // why, when the resolver returns nonzero
};

using Resolver = int32_t (*)(const KernelRequest* request, KernelEntry* entry);

namespace binding {

// The toolkit's own numbering, so that torch's never crosses into Python.
enum Dtype : int32_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt8 = 4,
  kUInt8 = 5,
  kFloat8E4M3 = 6,
  kFloat8E5M2 = 7,
  kUnsupported = -1,
};

inline Dtype dtype_from_torch(int32_t torch_dtype) {
  struct Row {
    int32_t torch_dtype;
    Dtype dtype;
  };
  static const Row kRows[] = {
      {aoti_torch_dtype_float32(), kFloat32},           {aoti_torch_dtype_float64(), kFloat64},
      {aoti_torch_dtype_float16(), kFloat16},           {aoti_torch_dtype_bfloat16(), kBFloat16},
      {aoti_torch_dtype_int8(), kInt8},                 {aoti_torch_dtype_uint8(), kUInt8},
      {aoti_torch_dtype_float8_e4m3fn(), kFloat8E4M3}, {aoti_torch_dtype_float8_e5m2(), kFloat8E5M2},
  };
  for (const Row& row : kRows)
    if (row.torch_dtype == torch_dtype) return row.dtype;
  return kUnsupported;
}

class Registry {
 public:
  void set_resolver(Resolver resolver) { resolver_.store(resolver, std::memory_order_release); }

  // The kernel that serves `request`, or null where nobody has asked for it before.
  const KernelEntry* known(const KernelRequest& request) const {
    for (Node* node = buckets_[hash(request)].load(std::memory_order_acquire); node != nullptr; node = node->next)
      if (std::memcmp(&node->request, &request, sizeof(request)) == 0) return &node->entry;
    return nullptr;
  }

  // Returns the kernel that serves `request`, asking the resolver on a miss. Entries
  // are added and never removed, so a reader needs no lock; two threads that miss at
  // once add the same entry twice, which is harmless.
  const KernelEntry* find(const KernelRequest& request) {
    if (const KernelEntry* entry = known(request)) return entry;

    Resolver resolver = resolver_.load(std::memory_order_acquire);
    if (resolver == nullptr) fail("the kernel registry has no resolver: load this operator through its Python package");
    Node* node = new Node{request, {}, nullptr};
    if (resolver(&request, &node->entry) != 0) {
      node->entry.error[sizeof(node->entry.error) - 1] = '\0';
      const std::string message = node->entry.error;
      delete node;
      fail(message);
    }
    std::atomic<Node*>& bucket = buckets_[hash(request)];
    node->next = bucket.load(std::memory_order_relaxed);
    while (!bucket.compare_exchange_weak(node->next, node, std::memory_order_release, std::memory_order_relaxed)) {
    }
    return &node->entry;
  }

 private:
  struct Node {
    KernelRequest request;
    KernelEntry entry;
    Node* next;
  };

  static constexpr uint32_t kBuckets = 256;

  static uint32_t hash(const KernelRequest& request) {
    const uint32_t mixed = static_cast<uint32_t>(request.head_dim) * 0x9E3779B1u +
                           static_cast<uint32_t>(request.dtype) * 0x85EBCA6Bu +
                           static_cast<uint32_t>(request.group_size) * 0xC2B2AE35u +
                           static_cast<uint32_t>(request.device_index + 2 * request.device_type) * 0x27D4EB2Fu +
                           static_cast<uint32_t>(request.fast) * 0x165667B1u +
                           static_cast<uint32_t>(request.is_long) * 0xD3A2646Cu;
    return (mixed >> 16) % kBuckets;
  }

  std::atomic<Node*> buckets_[kBuckets] = {};
  std::atomic<Resolver> resolver_{nullptr};
};

// One per binding library: internal linkage, so that two loaded bindings never share it.
static Registry registry;

}  // namespace binding

extern "C" __attribute__((visibility("default"))) void binding_set_resolver(Resolver resolver) {
  binding::registry.set_resolver(resolver);
}
