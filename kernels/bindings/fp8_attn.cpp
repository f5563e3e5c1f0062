// Operators kernelwright::fp8_attn, fp8_attn_forward, fp8_attn_fast and fp8_attn_fast_forward.
//
// The first two run the same kernel. fp8_attn is the public one: its autograd rule is
// added in Python. fp8_attn_forward has none, and so none of its cost: ModelNew calls
// it when no gradient is asked for. The last two are their twins for torch's lower
// float32 matmul precisions: where there is a faster, less accurate kernel, they run that.
#include "bindings/attention.h"
#include "bindings/direct.h"

namespace {

template <bool FAST>
void fp8_attn(StableIValue* stack, uint64_t, uint64_t) {
  binding::Tensor q(reinterpret_cast<AtenTensorHandle>(stack[0]));
  binding::Tensor k(reinterpret_cast<AtenTensorHandle>(stack[1]));
  binding::Tensor v(reinterpret_cast<AtenTensorHandle>(stack[2]));
  binding::Tensor q_scale(reinterpret_cast<AtenTensorHandle>(stack[3]));
  binding::Tensor k_scale(reinterpret_cast<AtenTensorHandle>(stack[4]));
  binding::Tensor v_scale(reinterpret_cast<AtenTensorHandle>(stack[5]));
  const binding::Scales scales = {&q_scale, &k_scale, &v_scale};
  stack[0] = binding::attention("fp8_attn", q, k, v, &scales, aoti_torch_dtype_float32(), FAST).release();
}

template <bool FAST>
PyObject* fp8_attn_direct(PyObject*, PyObject* const* arguments, intptr_t count) {
  return binding::call_directly<6>(arguments, count, [](const AtenTensorHandle* handles) {
    const binding::TensorView q(handles[0]), k(handles[1]), v(handles[2]);
    const binding::TensorView q_scale(handles[3]), k_scale(handles[4]), v_scale(handles[5]);
    const binding::Scales scales = {&q_scale, &k_scale, &v_scale};
    return binding::attention({"fp8_attn", FAST, true, binding::Direct::empty}, q, k, v, &scales,
                              aoti_torch_dtype_float32());
  });
}

#define FP8_ATTN_ARGUMENTS "(Tensor q_q, Tensor k_q, Tensor v_q, Tensor q_scale, Tensor k_scale, Tensor v_scale) -> Tensor"

const binding::Operator kOperators[] = {
    {"fp8_attn", "fp8_attn" FP8_ATTN_ARGUMENTS, fp8_attn<false>},
    {"fp8_attn_forward", "fp8_attn_forward" FP8_ATTN_ARGUMENTS, fp8_attn<false>},
    {"fp8_attn_fast", "fp8_attn_fast" FP8_ATTN_ARGUMENTS, fp8_attn<true>},
    {"fp8_attn_fast_forward", "fp8_attn_fast_forward" FP8_ATTN_ARGUMENTS, fp8_attn<true>},
};

[[maybe_unused]] const bool kRegistered = (binding::register_operators("kernelwright", kOperators, 4), true);

}  // namespace

BINDING_DIRECT_CALLS(fp8_attn_direct<false>, fp8_attn_direct<true>)
