// Fills the output with head_dim, or with VALUE where that is not zero: a kernel that builds in no time.
#include "tiny_value.h"

#include "bindings/attention_params.h"

namespace tiny {

template <typename T, int HEAD_DIM>
int32_t launch(const AttentionParams& params, void*) {
  T* out = static_cast<T*>(params.out);
  const int64_t count = params.batch * params.seqlen_q * params.num_heads * params.head_dim;
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(VALUE != 0 ? VALUE : HEAD_DIM);
  return 0;
}

template <typename T, int HEAD_DIM>
int32_t prepare() {
  return HEAD_DIM;
}

}  // namespace tiny
