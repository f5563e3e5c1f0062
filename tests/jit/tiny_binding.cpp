// Operators kernelwright::tiny, tiny_forward, tiny_fast and tiny_fast_forward, for the tests of the JIT.
#include "bindings/attention.h"

namespace {

template <bool FAST>
void tiny(StableIValue* stack, uint64_t, uint64_t) {
  binding::Tensor q(reinterpret_cast<AtenTensorHandle>(stack[0]));
  binding::Tensor k(reinterpret_cast<AtenTensorHandle>(stack[1]));
  binding::Tensor v(reinterpret_cast<AtenTensorHandle>(stack[2]));
  stack[0] = binding::attention("tiny", q, k, v, nullptr, q.dtype(), FAST).release();
}

#define TINY_ARGUMENTS "(Tensor q, Tensor k, Tensor v) -> Tensor"

const binding::Operator kOperators[] = {
    {"tiny", "tiny" TINY_ARGUMENTS, tiny<false>},
    {"tiny_forward", "tiny_forward" TINY_ARGUMENTS, tiny<false>},
    {"tiny_fast", "tiny_fast" TINY_ARGUMENTS, tiny<true>},
    {"tiny_fast_forward", "tiny_fast_forward" TINY_ARGUMENTS, tiny<true>},
};

[[maybe_unused]] const bool kRegistered = (binding::register_operators("kernelwright", kOperators, 4), true);

}  // namespace
