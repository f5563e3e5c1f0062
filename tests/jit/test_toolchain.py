"""Finding compilers where people have them, and saying what is missing where they do not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.errors import ToolchainError
from kernels.toolchain import cuda, diagnose, doctor, find_cuda, find_cxx, find_ninja


def fake_tool(path: Path, *says: str) -> Path:
    """A program that prints ``says``, counts its runs in a file beside it, and fails for any other use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(f"echo '{line}'" for line in says)
    path.write_text(f"#!/bin/sh\necho run >> '{path}.runs'\n{lines}\n")
    path.chmod(0o755)
    return path


def runs(path: Path) -> int:
    counter = Path(f"{path}.runs")
    return len(counter.read_text().splitlines()) if counter.exists() else 0


def fake_cuda(home: Path, version: str = "13.0", headers: str = "include") -> Path:
    """A CUDA toolkit in ``home``, as far as its nvcc and headers say."""
    fake_tool(
        home / "bin" / "nvcc",
        f"Cuda compilation tools, release {version}, V{version}.88",
        "compute_75 compute_90 compute_120",
        f"#$ TOP={home}/bin/..",
    )
    (home / headers).mkdir(parents=True, exist_ok=True)
    (home / headers / "cuda_runtime.h").write_text("")
    return home


@pytest.fixture
def bare(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a CUDA 13 torch and no CUDA toolkit; returns the only folder on PATH."""
    for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "bin"
    path.mkdir()
    (path / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(cuda, "_site_packages", lambda: [str(tmp_path / "site-packages")])
    monkeypatch.setattr(cuda, "_SYSTEM_FOLDERS", ())
    return path


def test_no_toolkit_names_the_fix(bare: Path) -> None:
    with pytest.raises(ToolchainError, match=r"no CUDA compiler \(nvcc\) of CUDA 13") as caught:
        find_cuda()
    assert "pip install 'cuda-toolkit[nvcc,crt,nvvm,cccl]'" in caught.value.fix


def test_cuda_home_is_first(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_cuda(tmp_path / "cuda home")
    fake_cuda(bare.parent)
    monkeypatch.setenv("CUDA_HOME", str(home))
    found = find_cuda()
    assert (found.home, found.version, found.build, found.origin) == (
        str(home),
        "13.0",
        "13.0.88",
        "CUDA_HOME",
    )
    assert found.archs == ("75", "90", "120") and found.major == 13


@pytest.mark.parametrize("wrong", ["nowhere", "no nvcc", "no headers", "another major"])
def test_cuda_home_that_is_wrong_is_passed_over(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    home = tmp_path / "wrong"
    if wrong != "nowhere":
        fake_cuda(home, "12.8" if wrong == "another major" else "13.0")
    if wrong == "no nvcc":
        (home / "bin" / "nvcc").unlink()
    if wrong == "no headers":
        shutil.rmtree(home / "include")
    monkeypatch.setenv("CUDA_HOME", str(home))
    right = fake_cuda(tmp_path / "right")
    monkeypatch.setenv("CUDA_PATH", str(right))
    assert find_cuda().home == str(right)


def test_symlinked_nvcc_leads_to_its_toolkit(bare: Path, tmp_path: Path) -> None:
    """As /usr/local/bin/nvcc often is: the folder above it is no CUDA home."""
    home = fake_cuda(tmp_path / "cuda-13.0")
    (tmp_path / "alias").symlink_to(home / "bin" / "nvcc")
    (bare / "nvcc").symlink_to(tmp_path / "alias")
    assert find_cuda().home == str(home)


def test_wrapper_script_leads_to_its_toolkit(bare: Path, tmp_path: Path) -> None:
    home = fake_cuda(tmp_path / "cuda-13.0")
    wrapper = bare / "nvcc"
    wrapper.write_text(f'#!/bin/sh\nexec "{home}/bin/nvcc" "$@"\n')
    wrapper.chmod(0o755)
    assert find_cuda().home == str(home)
    # The toolkit moves, and the wrapper, which looks it up, stays as it is.
    moved = tmp_path / "cuda-13.0.1"
    home.rename(moved)
    fake_cuda(moved)
    home_link = tmp_path / "elsewhere"
    wrapper.write_text(f'#!/bin/sh\nexec "{moved}/bin/nvcc" "$@"\n')
    assert not home_link.exists() and find_cuda().home == str(moved)


def test_conda_toolkit(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """conda keeps the headers below targets/, not in include/."""
    home = fake_cuda(tmp_path / "conda", headers="targets/x86_64-linux/include")
    monkeypatch.setenv("CONDA_PREFIX", str(home))
    assert (find_cuda().home, find_cuda().origin) == (str(home), "conda")


def test_toolkit_in_an_environment_that_is_not_activated(bare: Path, tmp_path: Path) -> None:
    assert find_cuda_in(fake_cuda(tmp_path / "prefix")) == "this environment"


def test_nvidia_packages(bare: Path, tmp_path: Path) -> None:
    assert find_cuda_in(fake_cuda(tmp_path / "site-packages" / "nvidia" / "cu13")) == "site-packages"


def find_cuda_in(home: Path) -> str:
    found = find_cuda()
    assert found.home == str(home)
    return found.origin


def test_site_packages_are_torchs_own_first() -> None:
    assert cuda._site_packages()[0] == str(Path(torch.__file__).parent.parent)


def test_major_version_must_be_torchs(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(tmp_path / "old", "12.8")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "old"))
    with pytest.raises(ToolchainError) as caught:
        find_cuda()
    assert "no nvcc of CUDA 13, which this torch is built for" in caught.value.missing
    assert f"12.8 in {tmp_path / 'old'} (CUDA_HOME)" in caught.value.missing
    assert "CUDA 13" in caught.value.fix


def test_a_minor_version_may_differ(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_cuda(tmp_path / "newer", "13.2")))
    assert find_cuda().version == "13.2"


def test_versions_are_remembered_until_the_file_changes(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_cuda(tmp_path / "cuda")
    monkeypatch.setenv("CUDA_HOME", str(home))
    nvcc = home / "bin" / "nvcc"
    find_cuda()
    asked = runs(nvcc)
    assert asked > 0 and find_cuda().version == "13.0" and runs(nvcc) == asked
    fake_cuda(home, "13.1 ")
    assert find_cuda().version == "13.1" and runs(nvcc) > asked


def test_memory_that_is_damaged_or_read_only_only_costs_time(
    bare: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_cuda(tmp_path / "cuda")))
    find_cuda()
    for file in (cache_dir / "tools").iterdir():
        file.write_text("[")
    assert find_cuda().version == "13.0"
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(tmp_path / "cuda" / "bin" / "nvcc" / "no folder"))
    assert find_cuda().version == "13.0"


# -- C++ and ninja -------------------------------------------------------------------------------------


def test_cxx_is_found_by_name(bare: Path) -> None:
    fake_tool(bare / "clang++", "clang version 18", "18.1.0")
    assert find_cxx().path == str(bare / "clang++")
    fake_tool(bare / "c++", "c++ 12.2", "12.2.0")
    assert find_cxx().path == str(bare / "c++")
    assert "12.2.0" in find_cxx().version


def test_cxx_that_does_not_run_is_passed_over(bare: Path) -> None:
    (bare / "c++").write_text("#!/no/such/shell\n")
    (bare / "c++").chmod(0o755)
    fake_tool(bare / "g++", "g++ 12.2", "12.2.0")
    assert find_cxx().path == str(bare / "g++")


@pytest.mark.parametrize("asked", ["my-g++", "ccache my-g++", "/usr/bin/ccache my-g++ -m64"])
def test_cxx_is_what_the_environment_says(bare: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    fake_tool(bare / "my-g++", "g++ 13", "13.0.0")
    monkeypatch.setenv("CXX", asked)
    assert find_cxx().path == str(bare / "my-g++")


def test_compiler_of_a_conda_environment_that_is_not_activated(bare: Path, tmp_path: Path) -> None:
    compiler = fake_tool(tmp_path / "prefix" / "bin" / "x86_64-conda-linux-gnu-c++", "c++ 14", "14.0.0")
    assert find_cxx().path == str(compiler)


def test_what_stands_before_ccache_is_asked_each_time(bare: Path, tmp_path: Path) -> None:
    """c++ as a link to ccache: the link's file says nothing of the compiler behind it."""
    real = fake_tool(tmp_path / "lib" / "ccache", "g++ 12", "12.0.0")
    (bare / "c++").symlink_to(real)
    find_cxx()
    asked = runs(real)
    find_cxx()
    assert runs(real) > asked


def test_no_cxx_names_the_fix(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler found") as caught:
        find_cxx()
    assert "package manager" in caught.value.fix
    fake_tool(bare / "apt-get")
    with pytest.raises(ToolchainError) as caught:
        find_cxx()
    assert caught.value.fix == "apt-get install -y g++"
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(ToolchainError, match="CXX=/nowhere/g\\+\\+ names no working C\\+\\+ compiler"):
        find_cxx()


def test_ninja_on_path_then_beside_python_then_in_its_package(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import types

    package = types.ModuleType("ninja")
    package.BIN_DIR = str(tmp_path / "data" / "bin")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ninja", package)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    with pytest.raises(ToolchainError, match="no ninja found") as caught:
        find_ninja()
    assert caught.value.fix == "pip install ninja"
    for folder in (tmp_path / "data" / "bin", tmp_path / "venv" / "bin", bare):
        ninja = fake_tool(folder / "ninja", "1.13.0")
        assert find_ninja() == str(ninja)


def test_ninja_on_path_that_is_broken_is_passed_over(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the script of a virtual environment that was moved."""
    (bare / "ninja").write_text("#!/no/such/python\n")
    (bare / "ninja").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    ninja = fake_tool(tmp_path / "venv" / "ninja", "1.13.0")
    assert find_ninja() == str(ninja)


# -- doctor ------------------------------------------------------------------------------------------------


def checks() -> dict[str, doctor.Check]:
    return {check.name: check for check in diagnose()}


@pytest.mark.slow
def test_doctor_finds_this_machine_well(cache_dir: Path) -> None:
    found = checks()
    assert {"Python", "torch", "ninja", "C++ compiler", "GPU", "CUDA compiler", "cache"} <= set(found)
    for name in ("Python", "torch", "ninja", "C++ compiler", "cache"):
        assert found[name].ok and found[name].detail and not found[name].fix, found[name]
    for check in found.values():
        assert check.ok != bool(check.fix)


@pytest.fixture
def without_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doctor without its test compilations."""
    monkeypatch.setattr(doctor, "_try_to_compile", lambda *args: "")


@pytest.mark.parametrize(
    ("name", "needed"), [("C++ compiler", True), ("ninja", True), ("CUDA compiler", False)]
)
def test_doctor_names_what_is_missing(
    bare: Path, without_probes: None, monkeypatch: pytest.MonkeyPatch, name: str, needed: bool
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setitem(sys.modules, "ninja", None)
    monkeypatch.setattr(doctor, "peek_cuda_arch", lambda: None)
    check = checks()[name]
    assert not check.ok and check.required is needed and check.fix


def test_doctor_requires_nvcc_where_there_is_a_gpu(
    bare: Path, without_probes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "peek_cuda_arch", lambda: "sm_90a")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = checks()
    assert found["CUDA compiler"].required and not found["CUDA compiler"].ok
    assert not found["GPU"].ok and "driver" in found["GPU"].fix
    monkeypatch.setattr(torch.version, "cuda", None)
    found = checks()
    assert not found["GPU"].ok and "CUDA build of torch" in found["GPU"].fix
    assert not found["CUDA compiler"].required and "CPU only" in found["CUDA compiler"].detail


@pytest.mark.parametrize(("arch", "ok"), [("sm_90a", True), ("sm_70", False)])
def test_doctor_compares_gpu_and_nvcc(
    bare: Path, tmp_path: Path, without_probes: None, monkeypatch: pytest.MonkeyPatch, arch: str, ok: bool
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_cuda(tmp_path / "cuda")))
    fake_tool(bare / "c++", "c++ 12", "12.0.0")
    monkeypatch.setattr(doctor, "peek_cuda_arch", lambda: arch)
    monkeypatch.setattr(doctor, "cuda_arch", lambda index: arch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    found = checks()
    assert found["GPU"].ok is ok and found["GPU"].required is not ok
    assert found["CUDA compiler"].ok


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("fatal error: cuda_runtime.h: No such file", "complete toolkit"),
        ("error: -- unsupported GNU version!", "set CXX"),
    ],
)
def test_doctor_tells_what_a_compilation_tells(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, fix: str
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_cuda(tmp_path / "cuda")))
    fake_tool(bare / "c++", "c++ 12", "12.0.0")
    monkeypatch.setattr(doctor, "_try_to_compile", lambda *args: said)
    check = checks()["CUDA compiler"]
    assert not check.ok and said in check.detail and fix in check.fix


def test_probe_reports_the_first_complaint() -> None:
    compiler = find_cxx().path
    assert doctor._try_to_compile([compiler, "-c"], "probe.cpp", "int x;\n") == ""
    assert "nothing" in doctor._try_to_compile([compiler, "-c"], "probe.cpp", "int x = nothing;\n")
    assert "/nowhere/c++" in doctor._try_to_compile(["/nowhere/c++"], "probe.cpp", "")


def test_doctor_looks_at_the_cache(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_probes: None
) -> None:
    assert doctor._check_cache().ok
    (tmp_path / "file").write_text("")
    with monkeypatch.context() as patch:
        patch.setenv("KERNELS_CACHE_DIR", str(tmp_path / "file" / "below"))
        check = doctor._check_cache()
        assert not check.ok and not check.required and "cannot be written" in check.detail
    real = os.statvfs(cache_dir)

    class Full:
        f_flag, f_bavail, f_frsize = real.f_flag, 1, 4096

    class Noexec:
        f_flag, f_bavail, f_frsize = real.f_flag | os.ST_NOEXEC, real.f_bavail, real.f_frsize

    monkeypatch.setattr(os, "statvfs", lambda path: Full)
    assert not doctor._check_cache().ok and "MB left" in doctor._check_cache().detail
    monkeypatch.setattr(os, "statvfs", lambda path: Noexec)
    assert doctor._check_cache().required and "noexec" in doctor._check_cache().detail


def test_doctor_reports_the_other_package_of_this_import_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    assert list(doctor._check_name_clash()) == []
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.12.0")
    (check,) = doctor._check_name_clash()
    assert "Hugging Face's kernels 0.12.0" in check.detail and "kernelwright" in check.detail
    assert not check.ok and not check.required and check.fix


def test_doctor_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    check = doctor._check_torch()
    assert not check.ok and check.required and "torch>=2.11" in check.fix


def test_doctor_with_an_old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    assert not doctor._check_torch().ok
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    assert doctor._check_torch().ok


# -- the package -------------------------------------------------------------------------------------------


def test_import_is_inert(python: Callable[..., subprocess.CompletedProcess]) -> None:
    code = """
import sys, kernels, kernels.jit, kernels.toolchain, kernels.errors
assert not {"torch", "rich", "numpy"} & set(sys.modules), sorted(sys.modules)
assert kernels.__version__ < "0.9"
assert "find_problem" in dir(kernels) and kernels.Problem.__name__ == "Problem"
for name in ("get_kernel", "kernelize"):
    try:
        exec(f"from kernels import {name}")
    except ImportError as error:
        assert "Hugging Face" in str(error) and "kernelwright" in str(error)
try:
    kernels.nothing
except AttributeError as error:
    assert "has no 'nothing'" in str(error) and "Hugging Face" in str(error)
assert not hasattr(kernels, "__path_of_nothing__")
"""
    python(code)
