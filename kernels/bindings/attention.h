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
// Up to this head_dim calls of more steps than this have a kernel library of their own on CUDA, so that the one for
// short calls, the default inputs' among them, is built in less time. kernels/problem.py has the same two.
constexpr int64_t kNarrowHeadDim = 32;
constexpr int64_t kShortSteps = 128;

struct Scales {
  const TensorView* q;
  const TensorView* k;
  const TensorView* v;
};

// What a tensor is, asked of torch once: each question is a call into its library.
struct Description {
  explicit Description(const TensorView& tensor)
      : dim(tensor.dim()),
        size(tensor.sizes()),
        stride(tensor.strides()),
        dtype(tensor.dtype()),
        device_type(tensor.device_type()),
        device_index(tensor.device_index()) {}

  bool same_device(const Description& other) const {
    return device_type == other.device_type && device_index == other.device_index;
  }

  int64_t dim;
  const int64_t* size;
  const int64_t* stride;
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
};

[[gnu::cold, gnu::noinline]] inline std::string shape_text(const Description& tensor) {
  std::string text = "[";
  for (int64_t i = 0; i < tensor.dim; ++i) text += (i > 0 ? ", " : "") + std::to_string(tensor.size[i]);
  return text + "]";
}

[[noreturn, gnu::cold, gnu::noinline]] inline void fail_rule(const char* op, const char* rule, const Description& a,
                                              const Description& b) {
  fail(std::string(op) + ": " + rule + "; got " + shape_text(a) + " and " + shape_text(b));
}

inline void require(bool holds, const char* op, const char* rule, const Description& a, const Description& b) {
  if (!holds) fail_rule(op, rule, a, b);
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
  explicit Workspace(const Description& like) : like_(like) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { delete memory_; }

  // What AttentionParams::allocate calls. Exceptions stay here: a kernel library knows none.
  static void* allocate(void* self, int64_t bytes) {
    Workspace& workspace = *static_cast<Workspace*>(self);
    try {
      const int64_t size[4] = {1, 1, 1, bytes};
      workspace.memory_ = new Tensor(Tensor::empty(size, aoti_torch_dtype_uint8(), workspace.like_.device_type,
                                                   workspace.like_.device_index));
      return workspace.memory_->mutable_data();
    } catch (...) {
      return nullptr;
    }
  }

 private:
  const Description& like_;
  Tensor* memory_ = nullptr;
};

// A scale's data and stride, once it is one that can be read.
inline const float* read_scale(const char* op, const Description& q, const TensorView& tensor, int64_t* stride) {
  const Description scale(tensor);
  require(scale.dim == 1 && scale.size[0] == q.size[2], op, "a scale must be [num_heads]", q, scale);
  require(scale.dtype == aoti_torch_dtype_float32(), op, "a scale must be float32", q, scale);
  require(scale.same_device(q), op, "a scale must be on the device of q", q, scale);
  *stride = scale.stride[0];
  return static_cast<const float*>(tensor.data());
}

// Makes the output: Tensor::empty, or another of its form.
using Allocate = Tensor (*)(const int64_t* size, int32_t dtype, int32_t device_type, int32_t device_index);

// How an operator is called.
struct Call {
  const char* op;
  bool fast;           // a faster, less accurate kernel may serve
  bool known_kernels;  // fail where no kernel was asked for so before
  Allocate empty;
};

// q [batch, seqlen_q, num_heads, head_dim], k and v [batch, seqlen_k, num_kv_heads,
// head_dim], scales null or float32 [num_heads]. Returns a contiguous tensor shaped
// as q, of type `out_dtype` (torch's number).
inline Tensor attention(const Call& call, const TensorView& q_tensor, const TensorView& k_tensor,
                        const TensorView& v_tensor, const Scales* scales, int32_t out_dtype) {
  const char* const op = call.op;
  const Description q(q_tensor), k(k_tensor), v(v_tensor);
  require(q.dim == 4 && k.dim == 4, op, "q, k and v must have four dimensions", q, k);
  require(v.dim == 4, op, "q, k and v must have four dimensions", q, v);
  require(k.size[0] == v.size[0] && k.size[1] == v.size[1] && k.size[2] == v.size[2] && k.size[3] == v.size[3], op,
          "k and v must have the same shape", k, v);
  require(q.size[0] == k.size[0], op, "q and k must have the same batch", q, k);
  require(q.size[3] == k.size[3], op, "q and k must have the same head_dim", q, k);
  require(q.size[3] >= 1 && q.size[3] <= kMaxHeadDim, op, "head_dim must be from 1 to 256", q, k);
  require(k.size[2] > 0 ? q.size[2] % k.size[2] == 0 : q.size[2] == 0, op,
          "num_heads must be a multiple of num_kv_heads", q, k);
  require(q.dtype == k.dtype && q.dtype == v.dtype, op, "q, k and v must have the same dtype", q, k);
  require(q.same_device(k), op, "q, k and v must be on the same device", q, k);
  require(q.same_device(v), op, "q, k and v must be on the same device", q, v);

  AttentionParams params;
  params.q_scale = params.k_scale = params.v_scale = nullptr;
  params.q_scale_stride = params.k_scale_stride = params.v_scale_stride = 0;
  if (scales != nullptr) {
    params.q_scale = read_scale(op, q, *scales->q, &params.q_scale_stride);
    params.k_scale = read_scale(op, q, *scales->k, &params.k_scale_stride);
    params.v_scale = read_scale(op, q, *scales->v, &params.v_scale_stride);
  }
  if (q.size[0] == 0 || q.size[1] == 0 || q.size[2] == 0)
    return call.empty(q.size, out_dtype, q.device_type, q.device_index);

  const bool on_cuda = q.device_type == aoti_torch_device_type_cuda();
  KernelRequest request;
  request.device_type = on_cuda ? 1 : 0;
  request.device_index = on_cuda ? q.device_index : 0;
  request.dtype = dtype_from_torch(q.dtype);
  request.head_dim = static_cast<int32_t>(q.size[3]);
  request.group_size = static_cast<int32_t>(q.size[2] / k.size[2]);
  request.fast = call.fast ? 1 : 0;
  request.is_long =
      on_cuda && q.size[3] <= kNarrowHeadDim && q.size[1] > kShortSteps && k.size[1] > kShortSteps ? 1 : 0;
  if (request.dtype == kUnsupported) fail(op, ": this dtype is not supported");
  const KernelEntry* entry = call.known_kernels ? registry.known(request) : registry.find(request);
  if (entry == nullptr) fail(op, ": no kernel is known for this");

  Tensor out = call.empty(q.size, out_dtype, q.device_type, q.device_index);
  params.q = q_tensor.data();
  params.k = k_tensor.data();
  params.v = v_tensor.data();
  params.out = out.mutable_data();
  params.batch = q.size[0];
  params.seqlen_q = q.size[1];
  params.seqlen_k = k.size[1];
  params.num_heads = q.size[2];
  params.num_kv_heads = k.size[2];
  params.head_dim = q.size[3];
  for (int i = 0; i < 4; ++i) {
    params.q_stride[i] = q.stride[i];
    params.k_stride[i] = k.stride[i];
    params.v_stride[i] = v.stride[i];
  }
  params.softmax_scale = 1.0 / std::sqrt(static_cast<double>(params.head_dim));
  params.allocate = nullptr;
  params.allocator = nullptr;

  int32_t code = 0;
  if (on_cuda) {
    DeviceGuard guard(q.device_index);
    Workspace workspace(q);
    params.allocate = Workspace::allocate;
    params.allocator = &workspace;
    code = entry->launch(&params, current_cuda_stream(q.device_index));
  } else {
    uint32_t num_threads = 1;
    check(torch_get_num_threads(&num_threads), "thread count");
    HostContext context = {torch_parallel_for, static_cast<int32_t>(num_threads)};
    code = entry->launch(&params, &context);
  }
  if (code != 0) fail(std::string(op) + ": the kernel failed: " + entry->error_string(code));
  return out;
}

inline Tensor attention(const char* op, const TensorView& q, const TensorView& k, const TensorView& v,
                        const Scales* scales, int32_t out_dtype, bool fast) {
  return attention({op, fast, false, Tensor::empty}, q, k, v, scales, out_dtype);
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
