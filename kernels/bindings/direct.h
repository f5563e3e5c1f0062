// Calls that come straight from Python, past torch's dispatcher.
//
// A call of an operator takes a microsecond to reach the kernel: its arguments become boxed values, dispatch keys are
// gathered from them and from the thread, boxed values become handles, and the result goes all the way back. It has
// to, where something asked to see the call. A direct call looks in a few loads whether anything did; if so, or if
// anything else is unusual, it does nothing and returns None, and the caller calls the operator.
//
// Torch has no stable way to do this, so nothing is taken for granted: functions are found by their mangled names,
// which spell out what they take, and kernels/jit/direct_calls.py finds out by experiment where a tensor keeps what is
// read here. Where one of these fails there are no direct calls.
//
// Python.h is not needed: what is used of Python is in its stable ABI.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>

#include "bindings/tensor.h"

struct PyObject;

extern "C" {
struct PyMethodDef {
  const char* name;
  PyObject* (*function)(PyObject*, PyObject* const*, intptr_t);
  int flags;
  const char* documentation;
};
PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject*, PyObject*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
void PyErr_Clear();
void Py_IncRef(PyObject*);
}

// Where things are and what they look like where nothing is unusual. Mirrored by a struct format in
// kernels/jit/direct_calls.py.
struct DirectFacts {
  PyObject* none;
  const void* tensor_type;     // torch.Tensor
  uint64_t type_offset;        // bytes into a Python object: its type
  uint64_t tensor_offset;      // bytes into a Python tensor: the at::Tensor, one pointer to a TensorImpl
  uint64_t keys_offset;        // bytes into a TensorImpl: its dispatch keys
  uint64_t thread_keys[2][2];  // a thread's included and excluded keys: by default, and in inference mode
  uint64_t cpu_keys[2];        // a plain tensor's: by default, and made in inference mode
};

namespace binding {

constexpr int kFastCall = 0x80;  // METH_FASTCALL

// What at::detail::empty_strided_cuda takes and returns, as far as the calling convention is concerned.
struct Lengths {
  const int64_t* data;
  size_t size;
};
struct MaybeDevice {
  int8_t type;
  int8_t index;
  bool is_given;
};
struct TensorBase {
  ~TensorBase() {}  // returned in memory
  void* impl;
};

// What a direct call needs to know. One per binding library.
class Direct {
 public:
  // Returns whether everything that torch does not promise is there.
  bool find_functions() {
    has_observers_ = find<bool (*)()>("libtorch_cpu.so", "_ZN2at12hasCallbacksEv");
    function_modes_ = find<int64_t (*)()>("libtorch_cpu.so", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv");
    requires_grad_ = find<bool (*)(const void*)>("libc10.so", "_ZNK3c1010TensorImpl13requires_gradEv");
    wrap_ = find<PyObject* (*)(AtenTensorHandle)>("libtorch_python.so", "_Z16THPVariable_WrapON2at10TensorBaseE");
    return has_observers_ != nullptr && function_modes_ != nullptr && requires_grad_ != nullptr && wrap_ != nullptr &&
           thread_keys() != nullptr;
  }

  void set_facts(const DirectFacts& facts) { facts_ = facts; }

  // Keys of plain tensors on CUDA, known once there are any: by default, and made in inference mode.
  void set_cuda_keys(int32_t device_index, uint64_t keys, uint64_t inference_keys) {
    empty_cuda_ = find<EmptyCuda>("libtorch_cuda.so",
                                  "_ZN2at6detail18empty_strided_cudaE"
                                  "N3c108ArrayRefIlEES3_NS1_10ScalarTypeESt8optionalINS1_6DeviceEE");
    if (empty_cuda_ != nullptr && !cuda_allocation_works(device_index)) empty_cuda_ = nullptr;
    cuda_keys_[0].store(keys, std::memory_order_relaxed);
    cuda_keys_[1].store(inference_keys, std::memory_order_relaxed);
  }

  // This thread's included and excluded keys, as c10::impl::raw_local_dispatch_key_set holds them.
  static const uint64_t* thread_keys() {
    static thread_local const uint64_t* const keys =
        find<const uint64_t*>("libc10.so", "_ZN3c104impl26raw_local_dispatch_key_setE");
    return keys;
  }

  // No mode, transform, tracer or autocast is on in this thread, and no profiler.
  bool thread_is_plain() const {
    const uint64_t* keys = thread_keys();
    const auto is = [&](const uint64_t (&state)[2]) { return keys[0] == state[0] && keys[1] == state[1]; };
    return (is(facts_.thread_keys[0]) || is(facts_.thread_keys[1])) && function_modes_() == 0 && !has_observers_();
  }

  // An instance of torch.Tensor itself, with memory of its own on a CPU or CUDA device that holds what it means.
  bool is_plain(PyObject* object) const {
    if (field<const void*>(object, facts_.type_offset) != facts_.tensor_type) return false;
    const uint64_t keys = field<uint64_t>(tensor_impl(object), facts_.keys_offset);
    return keys == facts_.cpu_keys[0] || keys == cuda_keys_[0].load(std::memory_order_relaxed) ||
           keys == facts_.cpu_keys[1] || keys == cuda_keys_[1].load(std::memory_order_relaxed);
  }

  bool requires_grad(PyObject* object) const { return requires_grad_(tensor_impl(object)); }

  // Good as long as the object is: a handle is the address of an at::Tensor.
  AtenTensorHandle handle(PyObject* object) const {
    return reinterpret_cast<AtenTensorHandle>(reinterpret_cast<char*>(object) + facts_.tensor_offset);
  }

  // Tensor::empty; on CUDA without the dispatcher, which it goes through twice.
  static Tensor empty(const int64_t* size, int32_t dtype, int32_t device_type, int32_t device_index);

  // The Python tensor; the handle's own is left undefined. Null with an exception set where there is no memory.
  PyObject* wrap(const Tensor& tensor) const { return wrap_(tensor.handle()); }

  PyObject* none() const {
    Py_IncRef(facts_.none);
    return facts_.none;
  }

 private:
  using EmptyCuda = TensorBase (*)(Lengths size, Lengths stride, int8_t dtype, MaybeDevice device);

  // Whether what comes of it is what was asked for. No bytes: a graph may be captured just now.
  static bool cuda_allocation_works(int32_t device_index) {
    const int64_t size[4] = {0, 1, 3, 5};
    const int32_t dtype = aoti_torch_dtype_float16(), cuda = aoti_torch_device_type_cuda();
    try {
      const Tensor got = empty(size, dtype, cuda, device_index), want = Tensor::empty(size, dtype, cuda, device_index);
      return got.dim() == 4 && std::memcmp(got.sizes(), want.sizes(), sizeof(size)) == 0 &&
             std::memcmp(got.strides(), want.strides(), sizeof(size)) == 0 && got.dtype() == dtype &&
             got.device_type() == cuda && got.device_index() == device_index;
    } catch (...) {
      return false;
    }
  }

  template <typename T>
  static T find(const char* library, const char* name) {
    void* loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return loaded != nullptr ? reinterpret_cast<T>(dlsym(loaded, name)) : nullptr;
  }

  template <typename T>
  static T field(const void* start, uint64_t offset) {
    return *reinterpret_cast<const T*>(static_cast<const char*>(start) + offset);
  }

  const void* tensor_impl(PyObject* object) const { return field<const void*>(object, facts_.tensor_offset); }

  DirectFacts facts_ = {};
  std::atomic<uint64_t> cuda_keys_[2] = {};  // 0: no tensor's
  bool (*has_observers_)() = nullptr;
  int64_t (*function_modes_)() = nullptr;
  bool (*requires_grad_)(const void*) = nullptr;
  PyObject* (*wrap_)(AtenTensorHandle) = nullptr;
  EmptyCuda empty_cuda_ = nullptr;
};

static Direct direct;

inline Tensor Direct::empty(const int64_t* size, int32_t dtype, int32_t device_type, int32_t device_index) {
  if (direct.empty_cuda_ == nullptr || device_type != aoti_torch_device_type_cuda())
    return Tensor::empty(size, dtype, device_type, device_index);
  int64_t strides[4];
  contiguous_strides(size, strides);
  AtenTensorHandle handle = nullptr;
  check(aoti_torch_new_uninitialized_tensor(&handle), "a tensor's handle");
  Tensor out(handle);
  // In place of the undefined tensor there, which nobody counts.
  const MaybeDevice device = {static_cast<int8_t>(device_type), static_cast<int8_t>(device_index), true};
  new (handle) TensorBase(direct.empty_cuda_({size, 4}, {strides, 4}, static_cast<int8_t>(dtype), device));
  return out;
}

// Runs `run`, which takes an array of COUNT TensorViews and returns a Tensor, without Python's lock. Python's None
// where a gradient is asked for, or where the call is not plain, or fails: the operator says why.
template <int COUNT, typename RUN>
PyObject* call_directly(PyObject* const* arguments, intptr_t count, RUN run) {
  if (count != COUNT || !direct.thread_is_plain()) return direct.none();
  AtenTensorHandle handles[COUNT];
  for (int i = 0; i < COUNT; ++i) {
    if (!direct.is_plain(arguments[i])) return direct.none();
    handles[i] = direct.handle(arguments[i]);
  }
  if (aoti_torch_grad_mode_is_enabled())
    for (int i = 0; i < COUNT; ++i)
      if (direct.requires_grad(arguments[i])) return direct.none();

  Tensor out(nullptr);
  void* const thread = PyEval_SaveThread();
  try {
    out = run(handles);
  } catch (...) {
  }
  PyEval_RestoreThread(thread);
  if (out.handle() == nullptr) return direct.none();
  try {
    return direct.wrap(out);
  } catch (...) {
    PyErr_Clear();
    return direct.none();
  }
}

}  // namespace binding

#define BINDING_EXPORT extern "C" __attribute__((visibility("default")))

BINDING_EXPORT bool binding_direct_is_possible() { return binding::direct.find_functions(); }

BINDING_EXPORT const uint64_t* binding_thread_keys() { return binding::Direct::thread_keys(); }

BINDING_EXPORT void binding_set_direct_facts(const DirectFacts* facts) { binding::direct.set_facts(*facts); }

BINDING_EXPORT void binding_set_cuda_keys(int32_t device_index, uint64_t keys, uint64_t inference_keys) {
  binding::direct.set_cuda_keys(device_index, keys, inference_keys);
}

// Defines where Python gets the two functions of a direct call from: the accurate one and its fast twin.
#define BINDING_DIRECT_CALLS(accurate, fast)                                             \
  BINDING_EXPORT PyObject* binding_direct_call(bool wants_fast) {                        \
    static PyMethodDef methods[] = {{#accurate, accurate, binding::kFastCall, nullptr},  \
                                    {#fast, fast, binding::kFastCall, nullptr}};         \
    return PyCFunction_NewEx(&methods[wants_fast ? 1 : 0], nullptr, nullptr);            \
  }
