"""Notes on what a Python candidate does that may well be honest, and that a reader wants to know."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernels.evaluate.lint.names import root_name
from kernels.evaluate.lint.walk import Place, Seen, parameters, written

__all__ = ["habits"]

_SHORT = re.compile(r"torch\.(bfloat16|float16|half|float8_\w+)")
_SHORT_TRITON = re.compile(r"triton\.language\.(bfloat16|float16|float8\w+)")
_AUTOCAST = frozenset("torch.amp.autocast torch.autocast torch.cuda.amp.autocast".split())
_THREADS = frozenset(
    "_thread.start_new_thread concurrent.futures.ProcessPoolExecutor concurrent.futures.ThreadPoolExecutor"
    " multiprocessing.Pool multiprocessing.Process os.fork threading.Thread threading.Timer"
    " torch.multiprocessing.Process torch.multiprocessing.spawn".split()
)
_STREAMS = frozenset("torch.cuda.ExternalStream torch.cuda.Stream torch.Stream".split())
_FAST_MATH = re.compile(
    r"-{1,2}(use_fast_math|ffast-math|Ofast|funsafe-math-optimizations|fp-model=fast"
    r"|ftz=true|prec-div=false|prec-sqrt=false)|-Ofast"
)
# Functions that do a whole step of a network, in torch.<name> or torch.nn.functional.<name>.
_WHOLE = frozenset(
    "addbmm addmm addmv adaptive_avg_pool2d avg_pool1d avg_pool2d avg_pool3d baddbmm batch_norm"
    " bilinear bmm cdist chain_matmul conv1d conv2d conv3d conv_transpose1d conv_transpose2d"
    " conv_transpose3d cosine_similarity cross_entropy cumprod cumsum einsum embedding embedding_bag"
    " gelu group_norm grouped_mm instance_norm kl_div layer_norm linear log_softmax logsumexp matmul"
    " max_pool1d max_pool2d max_pool3d mm mse_loss multi_head_attention_forward multi_dot mv nll_loss"
    " rms_norm scaled_dot_product_attention silu smooth_l1_loss softmax sort tensordot topk"
    " triplet_margin_loss vecdot".split()
)
_METHODS = frozenset("addmm baddbmm bmm cumsum cumprod logsumexp matmul mm mv softmax sort topk".split())
_LAYERS = re.compile(
    r"torch\.nn\.(?:modules\.\w+\.)?(AdaptiveAvgPool\dd|AvgPool\dd|BatchNorm\dd|Bilinear|Conv\dd|ConvTranspose\dd"
    r"|CrossEntropyLoss|Embedding|EmbeddingBag|GELU|GRU|GroupNorm|InstanceNorm\dd|LSTM|LayerNorm|Linear|MaxPool\dd"
    r"|MultiheadAttention|RMSNorm|RNN|Softmax|Transformer\w*)"
)
_BROAD = frozenset(("BaseException", "Exception", "RuntimeError"))


def habits(node: ast.AST, place: Place) -> Iterator[Seen]:
    """What ``node`` does that is worth a note."""
    if isinstance(node, ast.Call):
        yield from _call(node, place)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield Seen("library-call", node, "@")
    elif isinstance(node, (ast.List, ast.Tuple)):
        for one in node.elts:
            if (
                isinstance(one, ast.Constant)
                and isinstance(one.value, str)
                and _FAST_MATH.fullmatch(one.value)
            ):
                yield Seen("fast-math", one, f"compiles with {one.value}")
    elif isinstance(node, ast.Try) and place.function and place.function.name in ("__call__", "forward"):
        yield from _fallback(node)


def _call(node: ast.Call, place: Place) -> Iterator[Seen]:
    called = place.scopes.dotted(node.func) or ""
    yield from _library(node, called, place)
    yield from _precision(node, called, place)
    if called in _THREADS:
        yield Seen("thread", node, f"uses {called}")
    elif called in _STREAMS:
        yield Seen("side-stream", node, f"uses {called}")
    elif called == "time.sleep":
        yield Seen("sleep", node, "calls time.sleep")
    elif called.startswith("triton.language.atomic_"):
        yield Seen("atomics", node, f"uses {called.rpartition('.')[2]}")
    elif called in ("exit", "quit", "sys.exit") and place.function:
        yield Seen("process-exit", node, f"calls {called}")


def _library(node: ast.Call, called: str, place: Place) -> Iterator[Seen]:
    owner, _, last = called.rpartition(".")
    if last in _WHOLE and owner in ("torch", "torch.nn.functional", "torch.linalg", "torch.special"):
        short = "F" if owner == "torch.nn.functional" else owner
        yield Seen("library-call", node, f"{short}.{last}")
    elif called.startswith("torch.ops.aten."):
        yield Seen("library-call", node, called)
    elif match := _LAYERS.fullmatch(called):
        yield Seen("library-call", node, f"nn.{match.group(1)}")
    elif not called and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        mine = parameters(place.function)[1:] if place.function else []
        if root_name(node.func) in mine:
            yield Seen("library-call", node, f"Tensor.{node.func.attr}")


def _precision(node: ast.Call, called: str, place: Place) -> Iterator[Seen]:
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if called in _AUTOCAST:
        yield Seen("lower-precision", node, f"computes under {called}")
    elif method in ("bfloat16", "half") and not node.args and not called.startswith("torch."):
        yield Seen("lower-precision", node, f"casts with .{method}()")
    elif called == "triton.language.dot" and not _exact_dot(node):
        yield Seen("lower-precision", node, 'tl.dot of float32 uses TF32 unless input_precision="ieee"')
    else:
        for argument in [*node.args, *(one.value for one in node.keywords)]:
            name = place.scopes.dotted(argument) or ""
            if _SHORT.fullmatch(name) or _SHORT_TRITON.fullmatch(name):
                yield Seen("lower-precision", node, f"uses {name}")


def _exact_dot(node: ast.Call) -> bool:
    wanted = {"allow_tf32": False, "input_precision": "ieee"}
    return any(
        one.arg in wanted and isinstance(one.value, ast.Constant) and one.value.value == wanted[one.arg]
        for one in node.keywords
    )


def _fallback(node: ast.Try) -> Iterator[Seen]:
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        broad = any(kind is None or (isinstance(kind, ast.Name) and kind.id in _BROAD) for kind in kinds)
        raises = any(isinstance(inside, ast.Raise) for one in handler.body for inside in ast.walk(one))
        if broad and not raises:
            caught = written(handler.type) if handler.type else "everything"
            yield Seen("silent-fallback", handler, f"catches {caught} in forward and goes on")
