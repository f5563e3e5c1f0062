// Operators kernelwright::gqa_attn, gqa_attn_forward, gqa_attn_fast and gqa_attn_fast_forward.
//
// The first two run the same kernel. gqa_attn is the public one: its autograd rule is
// added in Python. gqa_attn_forward has none, and so none of its cost: ModelNew calls
// it when no gradient is asked for. The last two are their twins for torch's lower
// float32 matmul precisions: where there is a faster, less accurate kernel, they run that.
#include "bindings/attention.h"
#include "bindings/direct.h"

namespace {

template <bool FAST>
void gqa_attn(StableIValue* stack, uint64_t, uint64_t) {
  binding::Tensor q(reinterpret_cast<AtenTensorHandle>(stack[0]));
  binding::Tensor k(reinterpret_cast<AtenTensorHandle>(stack[1]));
  binding::Tensor v(reinterpret_cast<AtenTensorHandle>(stack[2]));
  stack[0] = binding::attention("gqa_attn", q, k, v, nullptr, q.dtype(), FAST).release();
}

template <bool FAST>
PyObject* gqa_attn_direct(PyObject*, PyObject* const* arguments, intptr_t count) {
  return binding::call_directly<3>(arguments, count, [](const AtenTensorHandle* handles) {
    const binding::TensorView q(handles[0]), k(handles[1]), v(handles[2]);
    return binding::attention({"gqa_attn", FAST, true, binding::Direct::empty}, q, k, v, nullptr, q.dtype());
  });
}

#define GQA_ATTN_ARGUMENTS "(Tensor q, Tensor k, Tensor v) -> Tensor"

const binding::Operator kOperators[] = {
    {"gqa_attn", "gqa_attn" GQA_ATTN_ARGUMENTS, gqa_attn<false>},
    {"gqa_attn_forward", "gqa_attn_forward" GQA_ATTN_ARGUMENTS, gqa_attn<false>},
    {"gqa_attn_fast", "gqa_attn_fast" GQA_ATTN_ARGUMENTS, gqa_attn<true>},
    {"gqa_attn_fast_forward", "gqa_attn_fast_forward" GQA_ATTN_ARGUMENTS, gqa_attn<true>},
};

[[maybe_unused]] const bool kRegistered = (binding::register_operators("kernelwright", kOperators, 4), true);

}  // namespace

BINDING_DIRECT_CALLS(gqa_attn_direct<false>, gqa_attn_direct<true>)
