// Operators kernelwright::tiny and kernelwright::tiny_forward, for the tests of the JIT.
#include "bindings/attention.h"

namespace {

void tiny(StableIValue* stack, uint64_t, uint64_t) {
  binding::Tensor q(reinterpret_cast<AtenTensorHandle>(stack[0]));
  binding::Tensor k(reinterpret_cast<AtenTensorHandle>(stack[1]));
  binding::Tensor v(reinterpret_cast<AtenTensorHandle>(stack[2]));
  stack[0] = binding::attention("tiny", q, k, v, nullptr, q.dtype()).release();
}

const binding::Operator kOperators[] = {
    {"tiny", "tiny(Tensor q, Tensor k, Tensor v) -> Tensor", tiny},
    {"tiny_forward", "tiny_forward(Tensor q, Tensor k, Tensor v) -> Tensor", tiny},
};

[[maybe_unused]] const bool kRegistered = (binding::register_operators("kernelwright", kOperators, 2), true);

}  // namespace
