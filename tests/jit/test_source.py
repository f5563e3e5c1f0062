"""The text a compiler gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_problem

from kernels.errors import KernelsError
from kernels.jit.source import assemble


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return tiny_problem.copy_sources(tmp_path / "sources")


def test_includes_are_found_once_and_named(sources: Path) -> None:
    source = assemble(tiny_problem.cpu_spec(source=sources / "tiny.cpp"))
    assert sorted(source.headers) == ["bindings/attention_params.h", "tiny_value.h"]
    for content in source.headers.values():
        assert content.startswith(b'#line 1 "')
    assert source.names["tiny_value.h"] == sources / "tiny_value.h"
    assert source.names["kernels/bindings/attention_params.h"].is_file()


def test_includes_of_includes(sources: Path) -> None:
    (sources / "inner").mkdir()
    (sources / "inner" / "deep.h").write_text('#include "../tiny_value.h"\n#include "deeper.h"\n')
    (sources / "inner" / "deeper.h").write_text('#include "deep.h"\n')  # a circle ends
    (sources / "tiny.cpp").write_text('#include "inner/deep.h"\n')
    source = assemble(tiny_problem.cpu_spec(source=sources / "tiny.cpp"))
    assert sorted(source.headers) == ["inner/deep.h", "inner/deeper.h", "tiny_value.h"]


def test_include_that_is_nowhere_is_left_to_the_compiler(sources: Path) -> None:
    (sources / "tiny.cpp").write_text(
        '// #include "a.h"\n#ifdef NEVER\n#include "b.h"\n#endif\n#include <vector>\n'
    )
    assert assemble(tiny_problem.cpu_spec(source=sources / "tiny.cpp")).headers == {}


@pytest.mark.parametrize("name", ["tiny.cpp", "tiny_value.h"])
def test_digest_follows_content_of_source_and_headers(sources: Path, name: str) -> None:
    spec = tiny_problem.cpu_spec(source=sources / "tiny.cpp")
    before = assemble(spec).digest
    assert assemble(spec).digest == before
    file = sources / name
    file.write_text(file.read_text() + "// one more line\n")
    assert assemble(spec).digest != before


def test_digest_follows_the_launcher_and_not_the_place(sources: Path, tmp_path: Path) -> None:
    spec = tiny_problem.cpu_spec(8, sources / "tiny.cpp")
    elsewhere = tiny_problem.cpu_spec(8, tiny_problem.copy_sources(tmp_path / "other place") / "tiny.cpp")
    assert assemble(elsewhere).digest == assemble(spec).digest
    assert assemble(tiny_problem.cpu_spec(16, sources / "tiny.cpp")).digest != assemble(spec).digest


def test_tail_instantiates_and_exports(sources: Path) -> None:
    source = assemble(tiny_problem.cpu_spec(8, sources / "tiny.cpp"))
    assert "template int32_t tiny::launch<float, 8>(const AttentionParams&, void*);" in source.tail
    assert "template int32_t tiny::prepare<float, 8>();" in source.tail
    for name in ("kernel_launch", "kernel_prepare", "kernel_error_string"):
        assert name in source.tail
    assert source.text.endswith(source.tail)


def test_binding_gets_no_tail() -> None:
    assert assemble(tiny_problem.binding()).tail == ""


def test_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelsError, match=r"tiny-fill-.*nowhere\.cpp: No such file"):
        assemble(tiny_problem.cpu_spec(source=tmp_path / "nowhere.cpp"))


def test_launcher_that_is_none_is_named() -> None:
    with pytest.raises(KernelsError, match="'tiny::launch<float' is no launcher"):
        assemble(replace(tiny_problem.cpu_spec(), launcher="tiny::launch<float"))
