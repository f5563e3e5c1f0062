// Tensors through torch's stable C ABI.
//
// Only the C shim is included: the C++ headers of the stable ABI more than double
// the time this file takes to compile, and a first call waits for it.
#pragma once

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/stable/c/shim.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace binding {

// Throws what Python sees as a RuntimeError. Out of line, as all words of errors are: there are many checks.
[[noreturn, gnu::cold, gnu::noinline]] inline void fail(const std::string& message) {
  throw std::runtime_error(message);
}

[[noreturn, gnu::cold, gnu::noinline]] inline void fail(const char* where, const char* what) {
  fail(std::string(where) + what);
}

// `what` and, where this torch tells, its own words.
[[noreturn, gnu::cold, gnu::noinline]] inline void fail_inside_torch(const std::string& what) {
  std::string message = what + " failed inside torch";
#if defined(TORCH_VERSION_2_13_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_13_0
  const char* const words = torch_exception_get_what_without_backtrace();
  if (words != nullptr && words[0] != '\0') message += std::string(": ") + words;
#endif
  fail(message);
}

inline void check(AOTITorchError code, const char* what) {
  if (code != AOTI_TORCH_SUCCESS) fail_inside_torch(what);
}

// The words are those that Operator.explain (kernels/jit/operator.py) knows.
[[noreturn, gnu::cold, gnu::noinline]] inline void fail_allocation(const int64_t* size, int32_t dtype) {
  std::string shape;
  int64_t bytes = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
  bool fits = true;
  for (int i = 0; i < 4; ++i) {
    shape += (i > 0 ? ", " : "") + std::to_string(size[i]);
    fits = fits && !__builtin_mul_overflow(bytes, size[i], &bytes);
  }
  fail_inside_torch("allocating [" + shape + "], " + (fits ? std::to_string(bytes) : "over 2^63") + " bytes,");
}

// As torch counts them, zero sizes included.
inline void contiguous_strides(const int64_t* size, int64_t* strides) {
  int64_t step = 1;
  for (int i = 3; i >= 0; --i) {
    strides[i] = step;
    if (size[i] > 1) step *= size[i];
  }
}

// A tensor whose handle belongs to somebody else.
class TensorView {
 public:
  explicit TensorView(AtenTensorHandle handle) : handle_(handle) {}

  AtenTensorHandle handle() const { return handle_; }

  int64_t dim() const {
    int64_t value = 0;
    check(aoti_torch_get_dim(handle_, &value), "dim");
    return value;
  }
  const int64_t* sizes() const {
    int64_t* value = nullptr;
    check(aoti_torch_get_sizes(handle_, &value), "sizes");
    return value;
  }
  const int64_t* strides() const {
    int64_t* value = nullptr;
    check(aoti_torch_get_strides(handle_, &value), "strides");
    return value;
  }
  int32_t dtype() const {
    int32_t value = 0;
    check(aoti_torch_get_dtype(handle_, &value), "dtype");
    return value;
  }
  int32_t device_type() const {
    int32_t value = 0;
    check(aoti_torch_get_device_type(handle_, &value), "device type");
    return value;
  }
  int32_t device_index() const {
    int32_t value = 0;
    check(aoti_torch_get_device_index(handle_, &value), "device index");
    return value;
  }
  // Const access: does not mark a copy-on-write tensor as written.
  const void* data() const {
    const void* value = nullptr;
    check(torch_get_const_data_ptr(handle_, &value), "data pointer");
    return value;
  }
  void* mutable_data() {
    void* value = nullptr;
    check(torch_get_mutable_data_ptr(handle_, &value), "data pointer");
    return value;
  }

 protected:
  AtenTensorHandle handle_;
};

// A tensor whose handle goes with this object.
class Tensor : public TensorView {
 public:
  explicit Tensor(AtenTensorHandle handle) : TensorView(handle) {}
  Tensor(Tensor&& other) noexcept : TensorView(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  // A new contiguous tensor of `size`, four dimensions, of `dtype` (torch's number). empty_strided goes
  // through the dispatcher once; new_empty, shorter to call, does twice.
  static Tensor empty(const int64_t* size, int32_t dtype, int32_t device_type, int32_t device_index) {
    int64_t strides[4];
    contiguous_strides(size, strides);
    AtenTensorHandle handle = nullptr;
    if (aoti_torch_empty_strided(4, size, strides, dtype, device_type, device_index, &handle) != AOTI_TORCH_SUCCESS)
      fail_allocation(size, dtype);
    return Tensor(handle);
  }

  // Gives the handle away, as the value an operator returns.
  StableIValue release() { return reinterpret_cast<StableIValue>(std::exchange(handle_, nullptr)); }
};

}  // namespace binding
