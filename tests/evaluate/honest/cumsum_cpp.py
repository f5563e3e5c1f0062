"""C++ through load_inline, as ordinary people write it."""

from torch import nn
from torch.utils.cpp_extension import load_inline

REFERENCE = "level1/cumsum"
DEVICES = ("cpu",)
SLOW = True

SOURCE = """
torch::Tensor scan(torch::Tensor x) {
  auto in = x.contiguous();
  auto out = torch::empty_like(in);
  AT_DISPATCH_FLOATING_TYPES(in.scalar_type(), "scan", [&] {
    const scalar_t* source = in.data_ptr<scalar_t>();
    scalar_t* target = out.data_ptr<scalar_t>();
    const int64_t rows = in.size(0), columns = in.size(1);
    for (int64_t row = 0; row < rows; ++row) {
      scalar_t total = 0;
      for (int64_t column = 0; column < columns; ++column) {
        total += source[row * columns + column];
        target[row * columns + column] = total;
      }
    }
  });
  return out;
}
"""
library = load_inline(name="proof_cumsum", cpp_sources=SOURCE, functions=["scan"])


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()

    def forward(self, x):
        return library.scan(x)
