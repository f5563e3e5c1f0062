"""What an installation promises: names, version, no clashing command, sources that travel along."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

import kernels
from kernels.discover import problem_packages

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_version_stays_below_what_other_libraries_probe_for() -> None:
    """transformers and diffusers look at whatever is imported as ``kernels``; below 0.9 they let it be."""
    major, minor, _ = map(int, kernels.__version__.split("."))
    assert (major, minor) < (0, 9)


def test_the_wheel_holds_every_package() -> None:
    packages = re.search(r"\[tool\.hatch\.build\.targets\.wheel\][^\[]*packages = \[([^\]]*)\]", PYPROJECT)
    assert packages is not None
    assert set(re.findall(r'"(\w+)"', packages.group(1))) == {"kernels", *problem_packages([ROOT])}


def test_no_file_that_the_toolkit_compiles_is_ignored() -> None:
    """hatchling leaves out what .gitignore names."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert not {"*.cu", "*.cuh", "*.cpp", "*.h"} & set(ignored)


@pytest.fixture
def distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("kernelwright")
    except metadata.PackageNotFoundError:
        pytest.skip("runs from a source folder that is not installed")


def test_the_installed_distribution(distribution: metadata.Distribution) -> None:
    assert distribution.version == kernels.__version__
    assert not [e for e in distribution.entry_points if e.group == "console_scripts"]
    required = {
        re.split(r"[><=;\[ ]", text)[0] for text in distribution.requires or [] if "extra ==" not in text
    }
    assert required == {"torch", "ninja", "rich"}
    assert set(distribution.metadata.get_all("Provides-Extra") or []) == {"cuda", "test"}
    compiler = [text for text in distribution.requires or [] if text.startswith("cuda-toolkit")]
    assert compiler and "==" not in compiler[0].partition(";")[0], "torch's own pin decides the version"
