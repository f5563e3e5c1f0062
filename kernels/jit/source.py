"""The text a compiler gets: a source file, the headers it includes, and its C functions.

A source is a real file. What is appended to its text is the explicit instantiation
of one launcher and the C functions a library exports, so that a library holds one
specialisation and nothing of torch. Every copied file opens with a ``#line`` that
carries its path below the project, and so does the digest: the same text gives the
same library wherever the checkout lies.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from kernels.errors import KernelsError
from kernels.includes import ROOT, closure
from kernels.jit.spec import KernelSpec

__all__ = ["ROOT", "Source", "assemble", "no_such_operator"]

_LAUNCHER = re.compile(r"(?P<scope>(?:\w+::)*)(?P<function>\w+)(?P<arguments><.*>)?", re.DOTALL)

_KERNEL_TAIL = """
#line 1 "{label}"
{instantiate}
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT int32_t kernel_launch(const AttentionParams* params, void* context) {{
  return {launch}(*params, context);
}}
EXPORT int32_t kernel_prepare() {{ return {prepare}(); }}
EXPORT const char* kernel_error_string(int32_t code) {{ return {error_string}; }}
"""
_ERROR_STRING = {
    "cuda": "cudaGetErrorString(static_cast<cudaError_t>(code))",
    "cpu": 'code == 0 ? "no error" : "a worker thread failed"',
}


@dataclass(frozen=True)
class Source:
    """An assembled source.

    ``text`` is the main file, ``headers`` the included files by the path they are
    copied to. ``names`` maps each ``#line`` name to the real file, ``tail`` is the
    appended text and ``tail_label`` its ``#line`` name. ``digest`` covers it all.
    """

    text: str
    headers: dict[str, bytes]
    names: dict[str, Path]
    tail: str
    tail_label: str
    digest: str


def assemble(spec: KernelSpec) -> Source:
    """Read the source of ``spec`` and everything it includes by quoted name.

    Raises :class:`KernelsError` when the source file is not there, and for a binding that nowhere names
    its problem: it would register the operators of another, which ends the process if that has its own.
    """
    # A relative path is joined to ROOT; an absolute one replaces it.
    path = ROOT / spec.source
    try:
        body = path.read_bytes()
    except OSError as error:
        raise KernelsError(f"{spec.name}: cannot read its source {path}: {error.strerror}") from error

    names: dict[str, Path] = {}
    headers: dict[str, bytes] = {}
    for relative, file, content in closure(body, path):
        label = _label(file)
        names[label] = file
        headers[relative] = f'#line 1 "{label}"\n'.encode() + content
    if spec.is_binding and not any(spec.problem.encode() in each for each in (body, *headers.values())):
        raise KernelsError(no_such_operator(spec.source, spec.problem, spec.problem))
    label = _label(path)
    names[label] = path
    tail_label = f"generated for {spec.name}"
    tail = _tail(spec, tail_label)
    text = f'#line 1 "{label}"\n' + body.decode("utf-8") + tail

    digest = hashlib.sha256(text.encode())
    for relative in sorted(headers):
        digest.update(f"\0{relative}\0{len(headers[relative])}\0".encode())
        digest.update(headers[relative])
    return Source(text, headers, names, tail, tail_label, digest.hexdigest())


def no_such_operator(binding: str, operator: str, problem: str) -> str:
    """What is wrong with a ``binding`` that was copied to ``problem`` by name alone, and what to do."""
    return (
        f"the binding {binding} registers no operator kernelwright::{operator}; copy it, rename the copy's "
        f"operators, and name the copy in binding= of {problem}/problem.py (README, 'A new problem', step 2)"
    )


def _label(path: Path) -> str:
    """A path that says nothing of where the checkout lies; build errors restore the real one."""
    if path.is_relative_to(ROOT):
        return path.relative_to(ROOT.parent).as_posix()
    return re.sub(r"[^\w.+-]", "_", path.name, flags=re.ASCII)


def _tail(spec: KernelSpec, label: str) -> str:
    if spec.is_binding:
        return ""
    match = _LAUNCHER.fullmatch(spec.launcher)
    if not match:
        raise KernelsError(
            f"{spec.name}: {spec.launcher!r} is no launcher; write it as namespace::launch<arguments>"
        )
    arguments = match["arguments"] or ""
    prepare = f"{match['scope']}prepare{arguments}"
    instantiate = ""
    if arguments:
        instantiate = (
            f"template int32_t {spec.launcher}(const AttentionParams&, void*);\ntemplate int32_t {prepare}();"
        )
    return _KERNEL_TAIL.format(
        label=label,
        instantiate=instantiate,
        launch=spec.launcher,
        prepare=prepare,
        error_string=_ERROR_STRING[spec.device],
    )
