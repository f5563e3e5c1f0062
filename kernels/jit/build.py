"""Compiles one specialisation into a published cache entry; the only caller of ``load_inline``.

A build happens in a private folder and appears in the cache in one rename. What
``load_inline`` gets wrong is put right around it: the CUDA home, ninja's and the
compiler's place, paths with characters that ninja or a shell would read, the
architecture flags, and the compiler's own words after a failure.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import os
import pickle
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels.errors import CacheError, CompileError, ToolchainError
from kernels.jit import cache, warm
from kernels.jit.cache import locks
from kernels.jit.source import Source, assemble
from kernels.jit.spec import KernelSpec
from kernels.jit.surroundings import prepared, safe_folder
from kernels.jit.words import Resources, failure, parse_resources
from kernels.toolchain import Compiler, CudaToolkit, find_cuda, find_cxx, find_ninja, torch_cuda_major

__all__ = ["Built", "Key", "Resources", "build", "check_arch", "find", "key"]


@dataclass(frozen=True)
class Built:
    """A library in the cache. ``seconds`` is what its build took now: 0.0 when ``cached``.

    ``resources`` has one entry per CUDA kernel and none for the CPU; ``manifest`` is
    what the cache keeps beside the library.
    """

    spec: KernelSpec
    path: Path
    seconds: float
    cached: bool
    resources: tuple[Resources, ...]
    manifest: dict[str, Any]


@dataclass(frozen=True)
class Key:
    """Everything that decides the content of a library.

    ``base`` covers all but the compilers, ``compilers`` the compilers and what is
    chosen by their version; it is None where a compiler is missing, and ``missing``
    then says which. ``digest`` names the pair.
    """

    spec: KernelSpec
    source: Source
    parts: dict[str, Any]
    base: str
    compilers: str | None
    cxx: Compiler | None
    cuda: CudaToolkit | None
    missing: ToolchainError | None
    since_ns: int  # time.time_ns() before any file was read

    @property
    def digest(self) -> str:
        return f"{self.base}-{self.compilers}"


# -- the key --------------------------------------------------------------------------------


def key(spec: KernelSpec) -> Key:
    """Read the source of ``spec`` and name everything its library depends on.

    Raises :class:`ToolchainError` for a CUDA specialisation under a torch without CUDA.
    """
    import torch

    since_ns = time.time_ns()
    if spec.device == "cuda":
        torch_cuda_major()  # a torch without CUDA is named before anything else
    source = assemble(spec)
    cxx: Compiler | None = None
    cuda: CudaToolkit | None = None
    missing: ToolchainError | None = None
    try:
        cxx = find_cxx()
        if spec.device == "cuda":
            cuda = find_cuda()
    except ToolchainError as error:
        missing = error
    parts: dict[str, Any] = {
        "format": cache.FORMAT,
        "problem": spec.problem,
        "variant": spec.variant,
        "device": spec.device,
        "arch": spec.arch,
        "launcher": spec.launcher,
        "params": [list(pair) for pair in spec.params],
        "source": source.digest,
        "flags": _flags(spec, None, None),
        "torch": torch.__version__,
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "cuda": torch.version.cuda,
        "platform": f"{sys.platform}-{platform.machine()}",
    }
    base = _digest(parts)[:20]
    compilers = None
    if missing is None:
        parts["cxx"] = cxx.version if cxx else None
        parts["nvcc"] = cuda.build if cuda else None
        parts["flags"] = _flags(spec, cxx, cuda)
        parts["environment"] = {name: os.environ[name] for name in _READ_BY_COMPILERS if name in os.environ}
        compilers = _digest(parts)[:12]
    return Key(spec, source, parts, base, compilers, cxx, cuda, missing, since_ns)


# Variables that change what a compiler makes of the same command.
_READ_BY_COMPILERS = (
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "PYTORCH_NVCC",
)


def _digest(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def find(wanted: Key) -> Built | None:
    """The whole cache entry for ``wanted``, or None."""
    hit = cache.find(wanted.spec.name, wanted.base, wanted.compilers)
    if hit is None:
        return None
    path, manifest = hit
    resources = tuple(Resources(**row) for row in manifest["resources"])
    return Built(wanted.spec, path, 0.0, True, resources, manifest)


# -- flags ------------------------------------------------------------------------------------

_CPU_FEATURES = {
    "x86-64-v3": ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}


def _flags(spec: KernelSpec, cxx: Compiler | None, cuda: CudaToolkit | None) -> list[str]:
    """Compiler flags that do not depend on where anything lies.

    Without compilers: what the newest would get.
    """
    gcc = cxx is None or "clang" not in cxx.version.lower()
    # A unique symbol would tie libraries that share a template together.
    hygiene = ["-fvisibility=hidden", *(["-fno-gnu-unique"] if gcc else [])]
    if spec.is_binding:
        return ["-std=c++17", "-O1", *hygiene]
    if spec.device == "cpu":
        return ["-std=c++17", "-O3", *_cpu_flags(spec.arch), *hygiene]
    return [
        *_gencode(spec.arch, cuda),
        "-std=c++17",
        "-O3",
        "-lineinfo",
        "-Xptxas=-v",
        *(f"-Xcompiler={flag}" for flag in hygiene),
        # nvcc includes <cmath> before every kernel; half of its cost is C++17's special functions
        # (Bessel, elliptic integrals), which device code cannot call. Their header's guard skips it.
        "-D_GLIBCXX_BITS_SPECFUN_H",
        # load_inline defines these for torch's headers, which no kernel includes.
        "-U__CUDA_NO_HALF_OPERATORS__",
        "-U__CUDA_NO_HALF_CONVERSIONS__",
        "-U__CUDA_NO_HALF2_OPERATORS__",
        "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    ]


def _cpu_flags(arch: str) -> list[str]:
    # Feature by feature: compilers older than the level names know the features.
    features: list[str] = []
    for level in ("x86-64-v3", "x86-64-v4"):
        if arch >= level and arch.startswith("x86-64-v"):
            features += (f"-m{feature}" for feature in _CPU_FEATURES[level])
    return features


def check_arch(arch: str) -> None:
    """Raises :class:`ToolchainError` unless the nvcc that is here compiles for ``arch``, such as sm_90a."""
    _gencode(arch, find_cuda())


def _gencode(arch: str, cuda: CudaToolkit | None) -> list[str]:
    """Machine code for ``arch``, or PTX of the newest architecture this nvcc knows below it.

    Raises :class:`ToolchainError` for an architecture older than nvcc supports.
    """
    match = re.fullmatch(r"sm_(\d+)([af]?)", arch)
    if not match:
        raise ValueError(f"{arch!r} is no CUDA architecture; write it as sm_90a")
    number, suffix = int(match[1]), match[2]
    known = sorted({int(re.sub(r"\D", "", name)) for name in cuda.archs}) if cuda else []
    if not known or number in known:
        return [f"-gencode=arch=compute_{number}{suffix},code=sm_{number}{suffix}"]
    assert cuda is not None
    if number < known[0]:
        raise ToolchainError(
            f"a GPU of compute capability {number // 10}.{number % 10} is older than nvcc {cuda.version} "
            f"compiles for ({known[0] // 10}.{known[0] % 10} and newer)",
            "use a newer GPU, a torch for an older CUDA with its toolkit, or keep the tensors on the CPU",
        )
    lower = max(n for n in known if n < number)
    return [f"-gencode=arch=compute_{lower},code=compute_{lower}"]


# -- building -----------------------------------------------------------------------------------


def build(wanted: Key) -> Built:
    """Compile ``wanted`` unless another process has just done so; holds the build lock meanwhile.

    Raises :class:`CompileError`, :class:`ToolchainError` or :class:`CacheError`.
    """
    if wanted.missing is not None:
        raise wanted.missing
    directory = cache.writable_directory()
    try:
        if wanted.spec.is_binding and warm.binding_is_loaded(wanted.spec.problem):
            return _build_elsewhere(wanted, directory)
        with cache.lock(directory, wanted.digest, wanted.spec.name):
            found = find(wanted)
            return found if found is not None else _build_locked(wanted, directory)
    except OSError as error:
        raise CacheError(f"building {wanted.spec.name} in {directory} failed: {error}") from error


def open_library(wanted: Key, library: Path) -> ctypes.CDLL:
    """Load ``library``, once per process and digest. Raises ``OSError``."""
    return warm.open_library(
        wanted.digest, str(library), wanted.spec.problem if wanted.spec.is_binding else ""
    )


_ELSEWHERE = """
import base64, pickle, sys
spec, sys.path = pickle.loads(base64.b64decode(sys.argv[1]))
from kernels.jit.cache import locks
from kernels.jit.load import obtain
def tell(message):
    sys.stdout.write("\\ntell " + base64.b64encode(message.encode()).decode() + "\\n")
    sys.stdout.flush()
locks.tell = tell
try:
    result = obtain(spec)
except Exception as error:
    result = error
sys.stdout.write("\\n" + base64.b64encode(pickle.dumps(result)).decode())
"""


def _build_elsewhere(wanted: Key, directory: Path) -> Built:
    """Build a binding in a process of its own: this one has its operators registered,
    and load_inline would load them again. What that one has to tell of a long wait is told here."""
    question = base64.b64encode(pickle.dumps((wanted.spec, sys.path))).decode()
    command = [sys.executable, "-c", _ELSEWHERE, question]
    environment = {**os.environ, "KERNELS_CACHE_DIR": str(directory)}
    with tempfile.TemporaryFile(dir=directory) as errors:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        ) as child:
            assert child.stdout is not None
            last = b""
            try:
                for line in child.stdout:
                    if line.startswith(b"tell "):
                        locks.tell(base64.b64decode(line[5:]).decode())
                    elif line.strip():
                        last = line
            except BaseException:
                child.kill()
                raise
        if child.returncode != 0:
            errors.seek(0)
            raise CompileError(wanted.spec.name, errors.read().decode("utf-8", "replace"))
    answer = pickle.loads(base64.b64decode(last))
    if isinstance(answer, Exception):
        raise answer
    return answer


def _build_locked(wanted: Key, directory: Path) -> Built:
    spec = wanted.spec
    ninja = find_ninja()
    started = time.perf_counter()
    with cache.scratch(directory) as private, safe_folder(private) as work:
        library, resources = _compile(wanted, work, ninja)
        seconds = time.perf_counter() - started
        staged = private / "entry"
        staged.mkdir()
        content = library.read_bytes()
        if library.is_relative_to(private):
            os.rename(library, staged / cache.LIBRARY)
        else:
            shutil.copy2(library, staged / cache.LIBRARY)
        manifest = {
            "format": cache.FORMAT,
            "name": spec.name,
            "key": wanted.parts,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "seconds": round(seconds, 3),
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "resources": [asdict(row) for row in resources],
        }
        (staged / cache.MANIFEST).write_bytes(cache.seal(manifest))
        assert wanted.compilers is not None
        path = cache.publish(directory, spec.name, wanted.base, wanted.compilers, staged)
    return Built(spec, path, seconds, False, resources, manifest)


def _link_flags(wanted: Key, work: Path) -> list[str]:
    """``-L`` for a folder of stand-ins that comes before torch's own libraries.

    Reading torch's hundred thousand symbols takes longer than all the rest of a link.
    A kernel library needs nothing of torch: empty linker scripts do. A binding needs
    ``libtorch_cpu.so``, which is loaded long before it: an empty library of that name
    leaves the dependency. NVIDIA's packages have no ``libcudart.so`` without a version,
    so a link to theirs stands here too.
    """
    folder = work / "lib"
    folder.mkdir()
    flags = [f"-L{folder}", "-Wl,--as-needed"]
    for name in ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch", "torch_python"):
        (folder / f"lib{name}.so").write_text("/* GNU ld script */\n", encoding="ascii")
    if wanted.spec.is_binding:
        assert wanted.cxx is not None
        _empty_library(wanted.cxx, folder / "libtorch_cpu.so")
        return [f"-L{folder}", "-Wl,--no-as-needed", "-ltorch_cpu", *flags[1:]]
    if wanted.cuda is not None and (runtime := _cudart(wanted.cuda)):
        (folder / "libcudart.so").symlink_to(runtime)
    return flags


def _empty_library(cxx: Compiler, path: Path) -> None:
    command = [
        cxx.path,
        "-shared",
        "-nostdlib",
        f"-Wl,-soname,{path.name}",
        "-x",
        "c++",
        os.devnull,
        "-o",
        str(path),
    ]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if result.returncode:
        said = result.stderr.decode("utf-8", "replace").strip()
        raise ToolchainError(
            f"{cxx.path} cannot link an empty library: {said}", "reinstall the C++ compiler (binutils)"
        )


def _cudart(cuda: CudaToolkit) -> str | None:
    for folder in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
        for name in ("libcudart.so", f"libcudart.so.{cuda.major}"):
            path = os.path.join(cuda.home, folder, name)
            if os.path.exists(path):
                return path
    return None


_counter_guard = threading.Lock()
_counter = 0


def _attempt_name(digest: str) -> str:
    """A name load_inline has not seen: it takes a name that failed once for built."""
    global _counter
    with _counter_guard:
        _counter += 1
        return f"kernelwright_{re.sub('[^0-9a-f]', '', digest)[:12]}_{os.getpid()}_{_counter}"


def _compile(wanted: Key, work: Path, ninja: str) -> tuple[Path, tuple[Resources, ...]]:
    """Compile in the folder ``work``; returns the library and ptxas's report."""
    spec, source = wanted.spec, wanted.source
    include = work / "include"
    for relative, content in source.headers.items():
        file = include / relative
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    include.mkdir(exist_ok=True)
    log = work / "compiler.log"
    # The compiler's own words go to a file of their own: what load_inline reports is
    # ninja's account of them.
    flags = [*_flags(spec, wanted.cxx, wanted.cuda), f"2>{log.name}"]
    name = _attempt_name(wanted.digest)
    on_cuda = spec.device == "cuda"
    assert wanted.cxx is not None
    with prepared(wanted.cxx, wanted.cuda, ninja) as cpp_extension:
        arguments: dict[str, Any] = {
            "name": name,
            "cpp_sources": "" if on_cuda else source.text,
            "cuda_sources": source.text if on_cuda else None,
            "extra_cflags": [] if on_cuda else flags,
            "extra_cuda_cflags": flags if on_cuda else [],
            "extra_ldflags": _link_flags(wanted, work),
            "extra_include_paths": [str(include), *_source_folder(spec, include)],
            "build_directory": str(work),
            "is_python_module": False,
            "no_implicit_headers": True,
        }
        try:
            cpp_extension.load_inline(**arguments)
        except OSError as error:
            reason = error.__cause__ or error  # torch says which library, the loader why
            raise CompileError(spec.name, f"the library was built and cannot be loaded: {reason}") from None
        except RuntimeError as error:
            # Without its cause: that is ninja's command line, and every word of the compiler again.
            raise failure(spec.name, source, wanted.cxx, wanted.cuda, _read_log(log), str(error)) from None
    library = work / f"{name}.so"
    # load_inline has loaded it: from here on this process has this digest.
    open_library(wanted, library)
    return library, parse_resources(_read_log(log)) if on_cuda else ()


def _source_folder(spec: KernelSpec, include: Path) -> list[str]:
    """The copy of the source's own folder, where headers beside it are found."""
    folder = os.path.dirname(spec.source)
    if os.path.isabs(folder) or not (include / folder).is_dir() or not folder:
        return []
    return [str(include / folder)]


def _read_log(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""  # the compiler was never started
