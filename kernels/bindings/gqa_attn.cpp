// Operators kernelwright::gqa_attn and kernelwright::gqa_attn_forward.
//
// Both run the same forward kernel. gqa_attn is the public one: its autograd rule is
// added in Python. gqa_attn_forward has none, and so none of its cost: ModelNew calls
// it when no gradient is asked for.
#include "bindings/attention.h"

namespace {

void gqa_attn(StableIValue* stack, uint64_t, uint64_t) {
  binding::Tensor q(reinterpret_cast<AtenTensorHandle>(stack[0]));
  binding::Tensor k(reinterpret_cast<AtenTensorHandle>(stack[1]));
  binding::Tensor v(reinterpret_cast<AtenTensorHandle>(stack[2]));
  stack[0] = binding::attention("gqa_attn", q, k, v, nullptr, q.dtype()).release();
}

const binding::Operator kOperators[] = {
    {"gqa_attn", "gqa_attn(Tensor q, Tensor k, Tensor v) -> Tensor", gqa_attn},
    {"gqa_attn_forward", "gqa_attn_forward(Tensor q, Tensor k, Tensor v) -> Tensor", gqa_attn},
};

[[maybe_unused]] const bool kRegistered = (binding::register_operators("kernelwright", kOperators, 2), true);

}  // namespace
