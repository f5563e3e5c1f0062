// What the attention operators share: argument checks, output allocation, launch.
//
// The checks here keep memory safe and say which rule was broken; the problem
// package's check_arguments says it at length, as a ValueError or a TypeError.
#pragma once

#include <dlfcn.h>

#include <cmath>
#include <string>

#include "bindings/registry.h"
#include "bindings/tensor.h"

namespace binding {

constexpr int64_t kMaxHeadDim = 256;

struct Scales {
  const Tensor* q;
  const Tensor* k;
  const Tensor* v;
};

inline std::string shape_text(const Tensor& tensor) {
  std::string text = "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) text += (i > 0 ? ", " : "") + std::to_string(tensor.sizes()[i]);
  return text + "]";
}

inline void require(bool holds, const char* op, const char* rule, const Tensor& a, const Tensor& b) {
  if (!holds) fail(std::string(op) + ": " + rule + "; got " + shape_text(a) + " and " + shape_text(b));
}

// The current stream of a CUDA device. Looked up by name, so that one binding
// serves torch with and without CUDA.
inline void* current_cuda_stream(int32_t device_index) {
  using GetStream = AOTITorchError (*)(int32_t, void**);
  static const GetStream get_stream = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    void* symbol = library != nullptr ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
    return reinterpret_cast<GetStream>(symbol);
  }();
  if (get_stream == nullptr) fail("this build of torch has no CUDA: libtorch_cuda.so is not loaded");
  void* stream = nullptr;
  check(get_stream(device_index, &stream), "current stream");
  return stream;
}

// Makes `device_index` current while it lives; free when it already is.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t device_index) {
    int32_t current = -1;
    check(aoti_torch_get_current_device_index(&current), "current device");
    if (current != device_index) check(aoti_torch_create_device_guard(device_index, &guard_), "device guard");
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (guard_ != nullptr) aoti_torch_delete_device_guard(guard_);
  }

 private:
  DeviceGuardHandle guard_ = nullptr;
};

// The memory that a kernel works in, for kernels that ask for it. Given back as this object goes, after the launch:
// torch's allocator hands it to later work of the same stream only.
class Workspace {
 public:
  explicit Workspace(const Tensor& like) : like_(like) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { delete memory_; }

  // What AttentionParams::allocate calls. Exceptions stay here: a kernel library knows none.
  static void* allocate(void* self, int64_t bytes) {
    Workspace& workspace = *static_cast<Workspace*>(self);
    try {
      const int64_t size[4] = {1, 1, 1, bytes};
      workspace.memory_ = new Tensor(Tensor::empty(workspace.like_, size, aoti_torch_dtype_uint8()));
      return workspace.memory_->mutable_data();
    } catch (...) {
      return nullptr;
    }
  }

 private:
  const Tensor& like_;
  Tensor* memory_ = nullptr;
};

inline void check_scale(const char* op, const Tensor& q, const Tensor& scale) {
  require(scale.dim() == 1 && scale.sizes()[0] == q.sizes()[2], op, "a scale must be [num_heads]", q, scale);
  require(scale.dtype() == aoti_torch_dtype_float32(), op, "a scale must be float32", q, scale);
  require(scale.device_type() == q.device_type() && scale.device_index() == q.device_index(), op,
          "a scale must be on the device of q", q, scale);
}

// q [batch, seqlen_q, num_heads, head_dim], k and v [batch, seqlen_k, num_kv_heads,
// head_dim], scales null or float32 [num_heads]. Returns a contiguous tensor shaped
// as q, of type `out_dtype` (torch's number). `fast`: a faster, less accurate kernel may serve.
inline Tensor attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Scales* scales,
                        int32_t out_dtype, bool fast) {
  require(q.dim() == 4 && k.dim() == 4, op, "q, k and v must have four dimensions", q, k);
  require(v.dim() == 4, op, "q, k and v must have four dimensions", q, v);
  const int64_t* q_size = q.sizes();
  const int64_t* k_size = k.sizes();
  const int64_t* v_size = v.sizes();
  require(k_size[0] == v_size[0] && k_size[1] == v_size[1] && k_size[2] == v_size[2] && k_size[3] == v_size[3], op,
          "k and v must have the same shape", k, v);
  require(q_size[0] == k_size[0], op, "q and k must have the same batch", q, k);
  require(q_size[3] == k_size[3], op, "q and k must have the same head_dim", q, k);
  require(q_size[3] >= 1 && q_size[3] <= kMaxHeadDim, op, "head_dim must be from 1 to 256", q, k);
  require(k_size[2] > 0 ? q_size[2] % k_size[2] == 0 : q_size[2] == 0, op,
          "num_heads must be a multiple of num_kv_heads", q, k);
  require(q.dtype() == k.dtype() && q.dtype() == v.dtype(), op, "q, k and v must have the same dtype", q, k);

  const int32_t device_type = q.device_type();
  const int32_t device_index = q.device_index();
  for (const Tensor* other : {&k, &v})
    require(other->device_type() == device_type && other->device_index() == device_index, op,
            "q, k and v must be on the same device", q, *other);
  if (scales != nullptr)
    for (const Tensor* scale : {scales->q, scales->k, scales->v}) check_scale(op, q, *scale);

  Tensor out = Tensor::empty(q, q_size, out_dtype);
  if (q_size[0] == 0 || q_size[1] == 0 || q_size[2] == 0) return out;

  AttentionParams params = {};
  params.q = q.data();
  params.k = k.data();
  params.v = v.data();
  params.out = out.mutable_data();
  if (scales != nullptr) {
    params.q_scale = static_cast<const float*>(scales->q->data());
    params.k_scale = static_cast<const float*>(scales->k->data());
    params.v_scale = static_cast<const float*>(scales->v->data());
    params.q_scale_stride = scales->q->strides()[0];
    params.k_scale_stride = scales->k->strides()[0];
    params.v_scale_stride = scales->v->strides()[0];
  }
  params.batch = q_size[0];
  params.seqlen_q = q_size[1];
  params.seqlen_k = k_size[1];
  params.num_heads = q_size[2];
  params.num_kv_heads = k_size[2];
  params.head_dim = q_size[3];
  for (int i = 0; i < 4; ++i) {
    params.q_stride[i] = q.strides()[i];
    params.k_stride[i] = k.strides()[i];
    params.v_stride[i] = v.strides()[i];
  }
  params.softmax_scale = 1.0 / std::sqrt(static_cast<double>(params.head_dim));

  const bool on_cuda = device_type == aoti_torch_device_type_cuda();
  KernelRequest request = {};
  request.device_type = on_cuda ? 1 : 0;
  request.device_index = on_cuda ? device_index : 0;
  request.dtype = dtype_from_torch(q.dtype());
  request.head_dim = static_cast<int32_t>(params.head_dim);
  request.group_size = static_cast<int32_t>(params.num_heads / params.num_kv_heads);
  request.fast = fast ? 1 : 0;
  if (request.dtype == kUnsupported) fail(std::string(op) + ": this dtype is not supported");
  const KernelEntry& entry = registry.find(request);

  int32_t code = 0;
  if (on_cuda) {
    DeviceGuard guard(device_index);
    Workspace workspace(q);
    params.allocate = Workspace::allocate;
    params.allocator = &workspace;
    code = entry.launch(&params, current_cuda_stream(device_index));
  } else {
    uint32_t num_threads = 1;
    check(torch_get_num_threads(&num_threads), "thread count");
    HostContext context = {torch_parallel_for, static_cast<int32_t>(num_threads)};
    code = entry.launch(&params, &context);
  }
  if (code != 0) fail(std::string(op) + ": the kernel failed: " + entry.error_string(code));
  return out;
}

// One operator: its schema, and the function that runs it on every device.
struct Operator {
  const char* name;
  const char* schema;
  void (*boxed)(StableIValue*, uint64_t, uint64_t);
};

// Defines `count` operators in `ns` and implements each for CPU and CUDA. The library
// objects live as long as the process, as the loaded code does.
inline void register_operators(const char* ns, const Operator* operators, int count) {
  TorchLibraryHandle definitions = nullptr;
  check(aoti_torch_library_init_fragment(ns, __FILE__, __LINE__, &definitions), "opening the operator namespace");
  for (int i = 0; i < count; ++i) check(aoti_torch_library_def(definitions, operators[i].schema), operators[i].schema);
  for (const char* key : {"CPU", "CUDA"}) {
    TorchLibraryHandle implementations = nullptr;
    check(aoti_torch_library_init_impl(ns, key, __FILE__, __LINE__, &implementations), key);
    for (int i = 0; i < count; ++i)
      check(torch_library_impl(implementations, operators[i].name, operators[i].boxed, TORCH_ABI_VERSION),
            operators[i].name);
  }
}

}  // namespace binding
