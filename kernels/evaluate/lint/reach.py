"""Rules on what a file reaches for beyond its inputs: frames, objects, memory, descriptors, processes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernels.evaluate.lint.names import PATH_MAKERS, UNKNOWN
from kernels.evaluate.lint.walk import Place, Seen, written

__all__ = ["reaches"]

_FRAMES = frozenset(
    "inspect.currentframe inspect.getinnerframes inspect.getouterframes inspect.stack inspect.trace"
    " sys._current_frames sys._getframe sys.monitoring.register_callback sys.monitoring.set_events"
    " sys.monitoring.set_local_events sys.setprofile sys.settrace threading.setprofile"
    " threading.settrace threading.setprofile_all_threads threading.settrace_all_threads"
    " traceback.walk_stack traceback.walk_tb".split()
)
# Attributes that only a traceback, a generator or a frame has.
_FRAME_ATTRIBUTES = frozenset("ag_frame cr_frame f_locals gi_frame tb_frame".split())
_COLLECTOR = frozenset("gc.get_objects gc.get_referents gc.get_referrers".split())
_ENDS = frozenset("os._exit os.abort os.kill os.killpg signal.pthread_kill signal.raise_signal".split())
_JUDGE = ("kernels.cli", "kernels.evaluate", "kernels.report")
_TRACING_CALLS = frozenset(("process_vm_readv", "process_vm_writev", "ptrace"))
_MEMORY_FILE = re.compile(r"/proc/[^/]+/(task/[^/]+/)?mem")
_PROCESSES = re.compile(r"/proc/?|/proc/(\d+|\*+|\[[^/]*)(/.*)?")
_DESCRIPTOR_FOLDER = re.compile(r"/proc/[^/]+/(fd|fdinfo)/?.*|/dev/fd/?.*")
_ADDRESS_CALLS = frozenset("cast memmove memset py_object string_at".split())
_STANDARD = frozenset(("sys.stdout.fileno", "sys.stderr.fileno", "sys.__stdout__.fileno"))


def reaches(node: ast.AST, place: Place) -> Iterator[Seen]:
    """What ``node`` reaches for that was not passed in."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from _import(node)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield from _attribute(node, place)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value == "/proc/self/maps" or node.value.startswith("/dev/shm"):
            yield Seen("shared-files", node, f"names {node.value}")
    elif isinstance(node, ast.Subscript):
        yield from _subscript(node, place)
    elif isinstance(node, ast.Call):
        yield from _call(node, place)


def _import(node: ast.Import | ast.ImportFrom) -> Iterator[Seen]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            name = alias.name
        elif node.level:
            continue
        else:
            name = f"{node.module}.{alias.name}"
        # One finding for a statement, however many names it brings in.
        inside = isinstance(node, ast.ImportFrom) and any(_judge(node, node.module))
        if not inside:
            yield from _judge(node, name)
        yield from _forbidden(node, name)
    if isinstance(node, ast.ImportFrom) and not node.level:
        yield from _judge(node, node.module)


def _judge(node: ast.AST, name: str | None) -> Iterator[Seen]:
    if name and (
        name == "__main__"
        or name.startswith("__main__.")
        or any(name == one or name.startswith(f"{one}.") for one in _JUDGE)
    ):
        yield Seen("judge-modules", node, f"reaches for {name}")


def _forbidden(node: ast.AST, name: str) -> Iterator[Seen]:
    if name in _FRAMES:
        yield Seen("frames", node, f"uses {name}")
    elif name in _COLLECTOR:
        yield Seen("garbage-collector", node, f"uses {name}")
    elif name in _ENDS:
        yield Seen("ends-process", node, f"uses {name}")
    elif name == "_ctypes.PyObj_FromPtr":
        yield Seen("interpreter-memory", node, f"uses {name}")


def _attribute(node: ast.Attribute, place: Place) -> Iterator[Seen]:
    name = place.scopes.dotted(node)
    if node.attr in _FRAME_ATTRIBUTES:
        yield Seen("frames", node, f"reads .{node.attr}")
    elif node.attr in _TRACING_CALLS:
        yield Seen("process-memory", node, f"uses {node.attr}")
    if name:
        yield from _forbidden(node, name)
    if name in _JUDGE:
        yield from _judge(node, name)
    elif name in ("sys.modules.items", "sys.modules.values"):
        yield Seen("module-table", node, "goes through sys.modules")


def _subscript(node: ast.Subscript, place: Place) -> Iterator[Seen]:
    if place.scopes.dotted(node.value) == "sys.modules":
        yield from _judge(node, place.scopes.text(node.slice))
    elif place.scopes.text(node.slice) in _TRACING_CALLS:
        yield Seen("process-memory", node, f"uses {place.scopes.text(node.slice)}")


def _call(node: ast.Call, place: Place) -> Iterator[Seen]:
    scopes = place.scopes
    called = scopes.dotted(node.func) or ""
    texts = [scopes.text(one) for one in node.args]
    if called in ("__import__", "importlib.import_module", "sys.modules.get") and texts:
        yield from _judge(node, texts[0])
    if called in ("getattr", "operator.attrgetter"):
        yield from _looked_up(node, texts[-1 if called == "operator.attrgetter" else 1 : 2], place)
    if called not in PATH_MAKERS:  # what is done with the path says what it is for
        owner = scopes.text(node.func.value) if isinstance(node.func, ast.Attribute) else None
        for text in {*texts, owner}:
            yield from _path(node, text)
    last = node.func.attr if isinstance(node.func, ast.Attribute) else called.rpartition(".")[2]
    if last == "from_address" or (called.startswith("ctypes.") and last in _ADDRESS_CALLS):
        yield from _address(node, called or f"(...).{last}", last, place)
    elif called.startswith(("os.", "socket.")):
        yield from _descriptor(node, called, place)
    elif called in ("compile", "eval", "exec") and texts and (texts[0] is None or UNKNOWN in texts[0]):
        yield Seen("dynamic-code", node, f"calls {called} on a computed text")


def _looked_up(node: ast.Call, names: list[str | None], place: Place) -> Iterator[Seen]:
    for name in names:
        if name in _FRAME_ATTRIBUTES:
            yield Seen("frames", node, f"reads .{name}")
        elif name in _TRACING_CALLS:
            yield Seen("process-memory", node, f"uses {name}")
    whole = place.scopes.dotted(node)
    if whole:
        yield from _forbidden(node, whole)


def _path(node: ast.Call, text: str | None) -> Iterator[Seen]:
    if not text or not text.startswith(("/proc", "/dev/")):
        return
    if _MEMORY_FILE.fullmatch(text):
        yield Seen("process-memory", node, f"names {text}")
    elif _DESCRIPTOR_FOLDER.fullmatch(text):
        yield Seen("descriptors", node, f"names {text}")
    elif _PROCESSES.fullmatch(text):
        yield Seen("other-processes", node, f"names {text}")


def _address(node: ast.Call, called: str, last: str, place: Place) -> Iterator[Seen]:
    """A call of ctypes that takes an address: of what?"""
    for argument in node.args:
        if any(place.scopes.dotted(inside) == "id()" for inside in ast.walk(argument)):
            yield Seen("interpreter-memory", node, f"passes id(...) to {called}")
            return
    if last in ("from_address", "memmove", "memset", "string_at"):
        yield Seen("raw-memory", node, f"calls {called}")


# -- descriptors -----------------------------------------------------------------------------


def _descriptor(node: ast.Call, called: str, place: Place) -> Iterator[Seen]:
    arguments = node.args
    if called in ("os.dup2", "os.dup3") and len(arguments) >= 2:
        target = arguments[1]
        standard = isinstance(target, ast.Constant) and target.value in (1, 2)
        if isinstance(target, ast.Call):
            standard = (place.scopes.dotted(target.func) or "") in _STANDARD
        if standard:
            yield Seen("descriptors", node, f"puts another file under {written(target)}")
    elif called in ("os.fdopen", "os.read", "os.sendfile", "os.write", "os.writev") and arguments:
        yield from _foreign(node, called, arguments[0], place)
    elif called in ("socket.fromfd", "socket.socket"):
        given = [one.value for one in node.keywords if one.arg == "fileno"]
        given += arguments[:1] if called == "socket.fromfd" else arguments[3:4]
        for one in given:
            yield from _foreign(node, called, one, place)
    elif called == "os.closerange":
        yield Seen("descriptors", node, "closes descriptors it did not open")


def _foreign(node: ast.Call, called: str, given: ast.AST, place: Place) -> Iterator[Seen]:
    """A descriptor given as a number above standard error, or taken from a range, was never opened here."""
    if isinstance(given, ast.Constant) and isinstance(given.value, int) and given.value > 2:
        yield Seen("descriptors", node, f"calls {called} on descriptor {given.value}")
    elif isinstance(given, ast.Name) and place.function and _from_range(given.id, place.function):
        yield Seen("descriptors", node, f"calls {called} on every descriptor in a range")


def _from_range(name: str, function: ast.AST) -> bool:
    return any(
        isinstance(loop, (ast.For, ast.comprehension))
        and isinstance(loop.target, ast.Name)
        and loop.target.id == name
        and isinstance(loop.iter, ast.Call)
        and isinstance(loop.iter.func, ast.Name)
        and loop.iter.func.id == "range"
        for loop in ast.walk(function)
    )
