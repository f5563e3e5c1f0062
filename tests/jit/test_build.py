"""From a source to a library: what is built, when it is built again, and what is said when it fails."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_problem
import torch
from jit_support import ROOT, needs_nvcc

from kernels.errors import CacheError, CompileError, ToolchainError
from kernels.jit import build, cache
from kernels.jit.load import load, obtain, stats
from kernels.jit.surroundings import cpp_extension
from kernels.jit.words import Resources, parse_resources
from kernels.toolchain import Compiler, CudaToolkit


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return tiny_problem.copy_sources(tmp_path / "sources")


def prepare(library: ctypes.CDLL) -> int:
    """The tiny kernel's answer: its head_dim."""
    return library.kernel_prepare()


def test_build_load_and_hit(cache_dir: Path) -> None:
    spec = tiny_problem.cpu_spec(8)
    first = obtain(spec)
    assert not first.cached and first.seconds > 0 and first.path.is_relative_to(cache_dir)
    second = obtain(spec)
    assert second.cached and second.seconds == 0.0 and second.path == first.path
    assert prepare(load(spec)) == 8
    assert prepare(load(tiny_problem.cpu_spec(16))) == 16
    assert second.manifest["name"] == spec.name and second.manifest["key"]["torch"] == torch.__version__
    assert [entry.ok for entry in cache.entries()] == [True, True]
    assert list((cache_dir / "work").iterdir()) == [] and list((cache_dir / "locks").iterdir()) == []


def test_library_needs_nothing_of_torch(cache_dir: Path) -> None:
    content = obtain(tiny_problem.cpu_spec()).path.read_bytes()
    assert b"libtorch" not in content and b"libc10" not in content


def test_nothing_of_the_machine_is_left_changed(cache_dir: Path) -> None:
    module = cpp_extension()
    before = (dict(os.environ), module.CUDA_HOME, module._TORCH_PATH, module.TORCH_LIB_PATH)
    obtain(tiny_problem.cpu_spec())
    assert (dict(os.environ), module.CUDA_HOME, module._TORCH_PATH, module.TORCH_LIB_PATH) == before


# -- the key ---------------------------------------------------------------------------------


def changed_header(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = sources / "tiny_value.h"
    header.write_text(header.read_text().replace("VALUE = 0", "VALUE = 1"))


def changed_torch(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.9.9")


def changed_cuda(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "99.0")


def changed_abi(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compiled_with_cxx11_abi", lambda: "another")


def changed_compiler(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = build.find_cxx()
    monkeypatch.setattr(build, "find_cxx", lambda: Compiler(found.path, found.version + " patched"))


def changed_flags(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = build._flags
    monkeypatch.setattr(build, "_flags", lambda *args: [*flags(*args), "-DUNUSED"])


def changed_machine(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "another")


CHANGES = [
    changed_header,
    changed_torch,
    changed_cuda,
    changed_abi,
    changed_compiler,
    changed_flags,
    changed_machine,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_a_miss_and_going_back_a_hit(
    cache_dir: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    spec = tiny_problem.cpu_spec(source=sources / "tiny.cpp")
    header = (sources / "tiny_value.h").read_text()
    obtain(spec)
    with monkeypatch.context() as patch:
        change(sources, patch)
        assert not obtain(spec).cached
        assert obtain(spec).cached
    (sources / "tiny_value.h").write_text(header)
    assert obtain(spec).cached


def test_architecture_is_part_of_the_key(cache_dir: Path) -> None:
    here = tiny_problem.cpu_spec()
    assert build.key(here).digest != build.key(replace(here, arch="x86-64-v9")).digest
    cuda = tiny_problem.cuda_spec()
    assert build.key(cuda).digest != build.key(replace(cuda, arch="sm_80")).digest


def put(path: Path, content: bytes) -> None:
    """Other content in a new file: this process has the old one mapped, and would die with it."""
    path.unlink()
    path.write_bytes(content)


SPOILED = {
    "truncated": lambda path: put(path, path.read_bytes()[:100]),
    "one bit": lambda path: put(path, bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
    "gone": lambda path: path.unlink(),
    "manifest gone": lambda path: path.with_name(cache.MANIFEST).unlink(),
}


@pytest.mark.parametrize("how", SPOILED)
def test_spoiled_library_is_built_again(cache_dir: Path, how: str) -> None:
    spec = tiny_problem.cpu_spec(24)
    SPOILED[how](obtain(spec).path)
    again = obtain(spec)
    assert not again.cached
    assert obtain(spec).cached and cache.verify() == []


def test_whole_library_for_another_machine_is_built_again(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole file that the loader refuses, such as one for another architecture, is a miss too."""
    spec = tiny_problem.cpu_spec(40)
    wanted = build.key(spec)
    foreign = bytearray(obtain(tiny_problem.cpu_spec(8)).path.read_bytes())
    foreign[18:20] = b"\xf3\x00"  # e_machine: RISC-V
    staged = cache_dir / "staged"
    staged.mkdir()
    (staged / cache.LIBRARY).write_bytes(foreign)
    import hashlib

    manifest = {
        "format": cache.FORMAT,
        "name": spec.name,
        "bytes": len(foreign),
        "sha256": hashlib.sha256(foreign).hexdigest(),
        "resources": [],
    }
    (staged / cache.MANIFEST).write_bytes(cache.seal(manifest))
    cache.publish(cache_dir, spec.name, wanted.base, wanted.compilers, staged)
    assert obtain(spec).cached  # whole, as far as content goes
    before = stats()["builds"]
    assert prepare(load(spec)) == 40
    assert stats()["builds"] == before + 1


# -- no compiler --------------------------------------------------------------------------------


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def take_away() -> None:
        def missing() -> Compiler:
            raise ToolchainError("no C++ compiler found", "apt-get install -y g++")

        monkeypatch.setattr(build, "find_cxx", missing)

    return take_away


def test_without_a_compiler_a_hit_serves(cache_dir: Path, no_compiler: Callable[[], None]) -> None:
    spec = tiny_problem.cpu_spec(32)
    obtain(spec)
    no_compiler()
    assert obtain(spec).cached
    assert prepare(load(spec)) == 32


def test_without_a_compiler_a_miss_names_the_fix(cache_dir: Path, no_compiler: Callable[[], None]) -> None:
    no_compiler()
    for _ in range(2):
        with pytest.raises(ToolchainError, match="no C\\+\\+ compiler") as caught:
            obtain(tiny_problem.cpu_spec())
        assert "fix: apt-get install -y g++" in str(caught.value)


# -- failures --------------------------------------------------------------------------------------


def spoil(file: Path, old: str, new: str) -> int:
    """Replace ``old`` and return the number of its line."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return text[: text.index(old)].count("\n") + 1


@pytest.mark.parametrize("name", ["tiny.cpp", "tiny_value.h"])
def test_compile_error_has_the_compilers_words_and_the_lines_around(
    cache_dir: Path, sources: Path, name: str
) -> None:
    old = {"tiny.cpp": "  return HEAD_DIM;", "tiny_value.h": "constexpr int VALUE = 0;"}[name]
    line = spoil(sources / name, old, "int no_such_thing = nowhere;")
    for _ in range(2):  # the second try says as much as the first
        with pytest.raises(CompileError) as caught:
            obtain(tiny_problem.cpu_spec(source=sources / "tiny.cpp"))
        error = caught.value
        assert error.spec.startswith("tiny-fill-")
        assert f"{sources / name}:{line}:" in error.output and "nowhere" in error.output
        assert f"> {line:4d} | int no_such_thing = nowhere;" in error.excerpt
        assert len(re.findall(r"^.? +\d+ \| ", error.excerpt, re.MULTILINE)) >= 3
    assert list((cache_dir / "work").iterdir()) == []


def test_error_in_the_generated_lines_shows_them(cache_dir: Path, sources: Path) -> None:
    spoil(sources / "tiny.cpp", "int32_t prepare()", "int32_t repare()")
    with pytest.raises(CompileError) as caught:
        obtain(tiny_problem.cpu_spec(source=sources / "tiny.cpp"))
    assert "generated for tiny-fill-" in caught.value.output
    assert re.search(
        r"^> +\d+ \| template int32_t tiny::prepare<float, 8>\(\);", caught.value.excerpt, re.MULTILINE
    )


def test_symbol_that_is_nowhere_is_named(cache_dir: Path, sources: Path) -> None:
    spoil(sources / "tiny.cpp", "namespace tiny {", 'extern "C" int not_there();\nnamespace tiny {')
    spoil(sources / "tiny.cpp", "return HEAD_DIM;", "return not_there();")
    with pytest.raises(CompileError, match="undefined symbol: not_there"):
        obtain(tiny_problem.cpu_spec(source=sources / "tiny.cpp"))


def test_mended_source_builds(cache_dir: Path, sources: Path) -> None:
    spec = tiny_problem.cpu_spec(source=sources / "tiny.cpp")
    spoil(sources / "tiny.cpp", "return HEAD_DIM;", "return HEAD_DIM")
    with pytest.raises(CompileError):
        obtain(spec)
    spoil(sources / "tiny.cpp", "return HEAD_DIM", "return HEAD_DIM;")
    assert prepare(load(spec)) == 8


def test_full_disk_is_a_cache_error(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "publish", full)
    with pytest.raises(CacheError, match="No space left on device"):
        obtain(tiny_problem.cpu_spec())


# -- places ------------------------------------------------------------------------------------------

ODD = ["with space", "käse-ナ", "co:lon", "dol$lar", "single'quote", "arch"]


@pytest.mark.parametrize("name", ODD)
def test_cache_in_an_odd_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(tmp_path / name))
    spec = tiny_problem.cpu_spec(48)
    built = obtain(spec)
    assert not built.cached and built.path.is_relative_to(tmp_path / name)
    assert obtain(spec).cached
    assert prepare(load(spec)) == 48


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["C"])
def test_everything_in_an_odd_place(
    tmp_path: Path, python: Callable[..., object], monkeypatch: pytest.MonkeyPatch, locale: str
) -> None:
    """Checkout, cache, torch, CUDA toolkit and TMPDIR, all below a folder with every odd letter."""
    odd = tmp_path / "a b:c$d ä arch"
    checkout, site, temporary = odd / "checkout", odd / "site", odd / "tmp"
    shutil.copytree(ROOT / "kernels", checkout / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    tiny_problem.copy_sources(checkout / "tiny")
    temporary.mkdir()
    torch_folder = Path(torch.__file__).parent
    (site / "torch").mkdir(parents=True)
    for path in torch_folder.iterdir():
        (site / "torch" / path.name).symlink_to(path)
    code = f"""
import sys
sys.path[:0] = [{str(site)!r}, {str(checkout)!r}]
import torch, kernels
assert torch.__file__.startswith({str(odd)!r}) and kernels.__file__.startswith({str(odd)!r})
import pathlib, tiny_problem
from kernels.errors import CompileError
from kernels.jit.load import load, obtain
tiny = pathlib.Path({str(checkout / "tiny")!r})
assert load(tiny_problem.cpu_spec(8, tiny / "tiny.cpp")).kernel_prepare() == 8
load(tiny_problem.binding(tiny / "tiny_binding.cpp"))
torch.ops.kernelwright.tiny
if {shutil.which("nvcc") is not None}:
    assert obtain(tiny_problem.cuda_spec(8, tiny / "tiny.cu")).resources
source = tiny / "tiny.cpp"
source.write_text(source.read_text().replace("return HEAD_DIM;", "return nowhere;"))
try:
    obtain(tiny_problem.cpu_spec(8, source))
except CompileError as error:
    assert str(source) in error.output and "> " in error.excerpt, error
else:
    raise AssertionError("built a broken source")
"""
    python(code, LC_ALL=locale, TMPDIR=str(temporary), KERNELS_CACHE_DIR=str(odd / "cache"))
    assert list((odd / "cache" / "work").iterdir()) == []
    assert list(temporary.iterdir()) == []


def test_ninja_that_is_not_on_path(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a virtual environment that is used without being activated."""
    tools = tmp_path / "to ols"
    tools.mkdir()
    for name in ("c++", "g++", "as", "ld", "sh", "uname"):
        if path := shutil.which(name):
            (tools / name).symlink_to(path)
    ninja = build.find_ninja()
    hidden = tmp_path / "venv" / "ninja"
    hidden.parent.mkdir()
    hidden.symlink_to(ninja)
    monkeypatch.setattr(build, "find_ninja", lambda: str(hidden))
    monkeypatch.setenv("PATH", str(tools))
    assert shutil.which("ninja") is None
    assert not obtain(tiny_problem.cpu_spec()).cached
    assert os.environ["PATH"] == str(tools)


def test_compiler_behind_a_cache_wrapper(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CXX="ccache g++", which load_inline takes for the name of one program."""
    monkeypatch.setenv("CXX", "ccache c++")
    assert not obtain(tiny_problem.cpu_spec()).cached
    assert os.environ["CXX"] == "ccache c++"


# -- CUDA ------------------------------------------------------------------------------------------------


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_cuda_kernel_builds_without_a_device(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    # The word "arch" in an include path makes load_inline drop every architecture.
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(cache_dir / "arch"))
    # A list for other extensions says nothing about ours.
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5")
    built = obtain(tiny_problem.cuda_spec(32, arch=arch))
    (resources,) = built.resources
    assert "fill_kernel" in resources.kernel
    assert resources.registers > 0 and resources.shared_bytes == 32 * 4
    assert resources.spill_store_bytes == resources.spill_load_bytes == resources.stack_bytes == 0
    assert arch.encode() in built.path.read_bytes()
    assert obtain(tiny_problem.cuda_spec(32, arch=arch)).resources == built.resources


@needs_nvcc
def test_cuda_compile_error(cache_dir: Path, sources: Path) -> None:
    line = spoil(sources / "tiny.cu", "  __syncthreads();", "  synchronise();")
    for _ in range(2):
        with pytest.raises(CompileError) as caught:
            obtain(tiny_problem.cuda_spec(source=sources / "tiny.cu"))
        assert f"{sources / 'tiny.cu'}({line}): error" in caught.value.output
        assert f"> {line:4d} |   synchronise();" in caught.value.excerpt
        assert "FAILED" not in caught.value.output and "ninja" not in caught.value.output


def toolkit(*archs: str) -> CudaToolkit:
    return CudaToolkit("/cuda", "13.0", "13.0.88", archs, "test")


@pytest.mark.parametrize(
    ("arch", "flag"),
    [
        ("sm_90a", "-gencode=arch=compute_90a,code=sm_90a"),
        ("sm_80", "-gencode=arch=compute_80,code=sm_80"),
        # Newer than this nvcc knows: PTX of the newest below, for the driver to compile.
        ("sm_130", "-gencode=arch=compute_120,code=compute_120"),
        ("sm_89", "-gencode=arch=compute_80,code=compute_80"),
    ],
)
def test_architecture_flags(arch: str, flag: str) -> None:
    assert build._gencode(arch, toolkit("75", "80", "90", "120")) == [flag]


def test_gpu_older_than_nvcc_is_named() -> None:
    with pytest.raises(ToolchainError, match=r"capability 7\.0 is older than nvcc 13\.0 compiles for \(7\.5"):
        build._gencode("sm_70", toolkit("75", "80", "90"))


def test_cuda_under_a_torch_without_cuda(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ToolchainError, match="built for CPU only"):
        obtain(tiny_problem.cuda_spec())
    monkeypatch.setattr(torch.version, "hip", "7.0", raising=False)
    with pytest.raises(ToolchainError, match="built for ROCm"):
        obtain(tiny_problem.cuda_spec())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("x.cu:1:10: fatal error: cuda_runtime.h: No such file or directory", "has no headers"),
        ("sh: 1: cicc: not found", "has no nvvm"),
        (
            "#error -- unsupported GNU version! gcc versions later than 15",
            "does not accept the C\\+\\+ compiler",
        ),
        ("/usr/bin/ld: cannot find -lcudart: No such file or directory", "has no libcudart"),
    ],
)
def test_broken_toolkit_is_no_compile_error(cache_dir: Path, said: str, words: str) -> None:
    source = build.key(tiny_problem.cuda_spec()).source
    error = build.failure("tiny", source, Compiler("/usr/bin/c++", "g++ 99"), toolkit("90"), said, "")
    assert isinstance(error, ToolchainError) and error.fix
    assert re.search(words, error.missing)


def test_resources_are_read_from_ptxas() -> None:
    log = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1fv' for 'sm_90a'
ptxas info    : Function properties for _Z1fv
    96 bytes stack frame, 88 bytes spill stores, 92 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 4096 bytes smem, 384 bytes cmem[0]
ptxas info    : Compiling entry function '_Z1gv' for 'sm_90a'
ptxas info    : Function properties for _Z1gv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""
    assert parse_resources(log) == (
        Resources("_Z1fv", 255, 4096, 96, 88, 92),
        Resources("_Z1gv", 8, 0, 0, 0, 0),
    )
