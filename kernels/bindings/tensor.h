// An owning view of one tensor through torch's stable C ABI.
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

inline void check(AOTITorchError code, const char* what) {
  if (code != AOTI_TORCH_SUCCESS) throw std::runtime_error(std::string(what) + " failed inside torch");
}

// Throws what Python sees as a RuntimeError.
[[noreturn]] inline void fail(const std::string& message) { throw std::runtime_error(message); }

class Tensor {
 public:
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  // A new contiguous tensor of `size`, four dimensions, on the device of `like`, of `dtype` (torch's
  // number). empty_strided goes through the dispatcher once; new_empty, shorter to call, does twice.
  static Tensor empty(const Tensor& like, const int64_t* size, int32_t dtype) {
    int64_t strides[4];
    int64_t step = 1;
    for (int i = 3; i >= 0; --i) {
      strides[i] = step;
      if (size[i] > 1) step *= size[i];  // as torch counts contiguous strides, zero sizes included
    }
    AtenTensorHandle handle = nullptr;
    check(aoti_torch_empty_strided(4, size, strides, dtype, like.device_type(), like.device_index(), &handle),
          "allocating the output");
    return Tensor(handle);
  }

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

  // Gives the handle away, as the value an operator returns.
  StableIValue release() { return reinterpret_cast<StableIValue>(std::exchange(handle_, nullptr)); }

 private:
  AtenTensorHandle handle_;
};

}  // namespace binding
