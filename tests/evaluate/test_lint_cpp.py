"""The lint on C++ and CUDA: the tokeniser, the rules, and sources held in Python strings."""

from __future__ import annotations

import textwrap

import pytest

from kernels.evaluate.lint import lint_file
from kernels.evaluate.lint.tokens import tokens


def names(text: str) -> list[tuple[str, int]]:
    return [(token.text, token.line) for token in tokens(text) if token.kind == "name"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a // b\nc", [("a", 1), ("c", 2)]),
        ("a // b \\\n still a comment\nc", [("a", 1), ("c", 3)]),
        ("a /* b\n// c */ d", [("a", 1), ("d", 2)]),
        ('a "http://b /* c" d', [("a", 1), ("d", 1)]),
        ('a "quote \\" // b" c', [("a", 1), ("c", 1)]),
        ('R"(a " // b\n)x" c)" d', [("d", 2)]),
        ('R"x(a )" b)x" d', [("d", 1)]),
        ('u8R"(a)" U"b" L\'c\' d', [("d", 1)]),
        ("1'000'000 a", [("a", 1)]),
        ("0x1p-3f + 1e+5 a", [("a", 1)]),
        ("'\\'' a", [("a", 1)]),
        ("#error it's a trap\na", [("a", 2)]),
        ("#pragma unroll it's\na", [("a", 2)]),
        ("#if 0\na\n#else\nb\n#endif\nc", [("b", 4), ("c", 6)]),
        ("#if 1\na\n#else\nb\n#endif\nc", [("a", 2), ("c", 6)]),
        ("#if 0\n#ifdef X\na\n#endif\nb\n#endif\nc", [("c", 7)]),
        ("#define A(x) \\\n  f(x)\nb", [("A", 1), ("x", 1), ("f", 2), ("x", 2), ("b", 3)]),
        ("lo\\\nng", [("lo", 1), ("ng", 2)]),
        ('"left open\na', [("a", 2)]),
        ("/* left open\na", []),
    ],
)
def test_tokens_are_code_only(text: str, expected: list[tuple[str, int]]) -> None:
    assert names(text) == expected


def test_headers_and_strings_are_kept_as_strings() -> None:
    found = [(token.kind, token.text) for token in tokens('#include <a/b.h>\nx = "y" R"(z\n)";')]
    assert ("string", "a/b.h") in found and ("string", "y") in found and ("string", "z\n") in found


def findings(text: str, path: str = "kernel.cu") -> set[tuple[str, str, int]]:
    return {(one.rule, one.severity, one.line) for one in lint_file(path, text)}


CHECK = "C10_CUDA_KERNEL_LAUNCH_CHECK();"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("void f() { ptrace(16, 1, 0, 0); }", ("process-memory", "violation", 1)),
        ('void f() {\n open("/proc/self/mem", 2); }', ("process-memory", "violation", 2)),
        ("void f() { ::_exit(0); }", ("ends-process", "violation", 1)),
        ("void f() { kill(getppid(), 9); }", ("ends-process", "violation", 1)),
        ("auto f() { return PyEval_GetFrame(); }", ("frames", "violation", 1)),
        ("void f() { PyEval_SetProfile(g, nullptr); }", ("frames", "violation", 1)),
        ('TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("softmax", f); }', ("patched-library", "note", 1)),
        ("int cudaEventRecord(void* e, void* s) { return 0; }", ("patched-clock", "violation", 1)),
        ("at::globalContext().setAllowTF32CuBLAS(true);", ("precision-switch", "violation", 1)),
        ('PyImport_ImportModule("kernels.evaluate.judge");', ("judge-modules", "violation", 1)),
        (f"k<<<g, b>>>(x); {CHECK}", ("default-stream", "note", 1)),
        (f"k<<<g, b, 0, 0>>>(x); {CHECK}", ("default-stream", "note", 1)),
        ("k<<<g, b, 0, stream>>>(x);", ("launch-check", "note", 1)),
        ("void f() { cudaMalloc(&p, 4); }", ("device-memory", "note", 1)),
        ("void f() { cudaStreamCreate(&s); }", ("side-stream", "note", 1)),
        ("__half x = 0;", ("lower-precision", "note", 1)),
        ("x = __float2half_rn(y);", ("lower-precision", "note", 1)),
        ('asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 ...");', ("lower-precision", "note", 1)),
        ("wmma::fragment<a, 16, 16, 8, wmma::precision::tf32> f;", ("lower-precision", "note", 1)),
        ("atomicAdd(&x[i], v);", ("atomics", "note", 1)),
        ("std::thread t(f);", ("thread", "note", 1)),
        ("std::this_thread::sleep_for(t);", ("sleep", "note", 1)),
        ("void f() { exit(1); }", ("process-exit", "note", 1)),
        ("auto y = at::matmul(a, b);", ("library-call", "note", 1)),
        ("cublasSgemm(h, a, b, m);", ("library-call", "note", 1)),
    ],
)
def test_rules(text: str, expected: tuple[str, str, int]) -> None:
    assert findings(text) == {expected}


@pytest.mark.parametrize(
    "text",
    [
        f"k<<<dim3(g, 1), b, bytes<T, 4>(), at::cuda::getCurrentCUDAStream()>>>(x); {CHECK}",
        f"k<T, f<int>><<<(n + 1) >> 2, b, 0, stream>>>(x); {CHECK}",
        "/* ptrace(1) */ // kill(0, 9)\n",
        'const char* help = "call kill(1, 9) or _exit(0)";',
        "#if 0\nkill(1, 9);\n#endif\n",
        "player.kill(target); arcade::kill(target); void kill(int target);",
        "void kill(int x) { y = x; }\nvoid g() { kill(3); }",
        "cudaEventRecord(start, stream);",
        "return cudaStreamSynchronize(stream);",
        'TORCH_LIBRARY_IMPL(mine, CPU, m) { m.impl("clone", f); }',
        "void f() { cudaMalloc(&p, 4); cudaFree(p); }",
        "float half_of = x * 0.5f;",
        "at::globalContext().setAllowTF32CuBLAS(false);",
        'asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 ...");',
    ],
)
def test_nothing_to_say(text: str) -> None:
    assert findings(text) == set()


def test_kernels_registered_over_those_that_copies_go_through() -> None:
    text = 'TORCH_LIBRARY_IMPL(aten, CUDA, m) {\n  m.impl("mm", f);\n  m.impl("aten::copy_", g);\n}\n'
    more = 'TORCH_LIBRARY_IMPL(mine, CUDA, m) { m.impl("clone", h); }'
    assert findings(text + more) == {("patched-library", "note", 1), ("patched-check", "violation", 3)}


def test_a_stream_that_is_waited_for_says_so() -> None:
    (one,) = lint_file("a.cu", "void f() { cudaStreamCreate(&s); cudaStreamWaitEvent(t, e); }")
    assert "never waits" not in one.message


# -- in Python strings -------------------------------------------------------------------------


def test_lines_in_a_python_string_are_those_of_the_file() -> None:
    text = textwrap.dedent(
        '''\
        """Includes #include <x> and __global__ void f() { kill(1, 9); } in prose."""
        from torch.utils.cpp_extension import load_inline

        SOURCE = r"""
        #include <cuda.h>
        // a comment with kill(1, 9);
        void f() { kill(1, 9); }
        """
        '''
    )
    assert findings(text, "candidate.py") == {("ends-process", "violation", 7)}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('S = "#include <a>\\n" \\\n    "void f() { kill(1, 9); }\\n"', 2),
        ("S = ('#include <a>\\n'  # first\n\n     'void f() { kill(1, 9); }\\n')", 3),
        ("N = 4\nS = f'''\n#include <a>\nint n = {N};\nvoid f() {{ kill(1, 9); }}'''", 5),
        ("S = '''#include <a>\\n\\\nint a;\nvoid f() { kill(1, 9); }'''", 3),
        ("S = '#include <a>\\nvoid f() { kill(1, 9); }'", 1),
        ("ä = 'ü'; S = '''#include <a>\nvoid f() { kill(1, 9); }'''; b = '''x\n'''", 2),
    ],
)
def test_lines_of_odd_literals(text: str, line: int) -> None:
    assert findings(text, "candidate.py") == {("ends-process", "violation", line)}


@pytest.mark.parametrize(
    "text",
    [
        'raise ValueError("no #include <x> allowed here; kill(1, 9)")',
        'x = "kill(1, 9);"',
        'def f():\n    """\n    #include <x>\n    kill(1, 9);\n    """\n',
    ],
)
def test_prose_in_strings_is_not_code(text: str) -> None:
    assert findings(text, "candidate.py") == set()
