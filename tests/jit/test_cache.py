"""What the cache directory keeps, trusts and throws away."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_problem
from jit_support import child_environment

from kernels.errors import CacheError
from kernels.jit import build, cache, warm


def put(
    name: str = "tiny-fill", base: str = "b" * 20, compilers: str = "c" * 12, content: bytes = b"library"
) -> Path:
    """Publish a made-up entry and return its folder."""
    import hashlib

    directory = cache.writable_directory()
    with cache.scratch(directory) as private:
        staged = private / "entry"
        staged.mkdir()
        (staged / cache.LIBRARY).write_bytes(content)
        manifest = {
            "format": cache.FORMAT,
            "name": name,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "resources": [],
        }
        (staged / cache.MANIFEST).write_bytes(cache.seal(manifest))
        return cache.publish(directory, name, base, compilers, staged).parent


def find(name: str = "tiny-fill", base: str = "b" * 20, compilers: str | None = "c" * 12):
    return cache.find(name, base, compilers)


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(tmp_path / "chosen"))
    assert cache.cache_directory() == tmp_path / "chosen"
    monkeypatch.delenv("KERNELS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_directory() == tmp_path / "kernelwright"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_directory() == tmp_path / ".cache" / "kernelwright"


def test_published_entry_is_found_and_leaves_nothing_else(cache_dir: Path) -> None:
    put()
    path, manifest = find()
    assert path.read_bytes() == b"library" and manifest["name"] == "tiny-fill"
    assert find(compilers="d" * 12) is None and find(base="a" * 20) is None
    assert list((cache_dir / "work").iterdir()) == []


def test_without_compilers_the_newest_that_fits_serves(cache_dir: Path) -> None:
    age(put(compilers="c" * 12, content=b"old"), 100)
    put(compilers="d" * 12, content=b"new")
    put(base="a" * 20, content=b"other")
    assert find(compilers=None)[0].read_bytes() == b"new"
    assert find(base="e" * 20, compilers=None) is None


SPOILED = {
    "flipped bit": lambda entry: (entry / cache.LIBRARY).write_bytes(b"librarx"),
    "truncated library": lambda entry: (entry / cache.LIBRARY).write_bytes(b"lib"),
    "no library": lambda entry: (entry / cache.LIBRARY).unlink(),
    "empty manifest": lambda entry: (entry / cache.MANIFEST).write_bytes(b""),
    "truncated manifest": lambda entry: (entry / cache.MANIFEST).write_bytes(
        (entry / cache.MANIFEST).read_bytes()[:-10]
    ),
    "manifest is no object": lambda entry: (entry / cache.MANIFEST).write_bytes(b"[1, 2]"),
    "manifest in another encoding": lambda entry: (entry / cache.MANIFEST).write_bytes(b"\xff\xfe{"),
    "edited manifest": lambda entry: (entry / cache.MANIFEST).write_bytes(
        (entry / cache.MANIFEST).read_bytes().replace(b"tiny-fill", b"tiny-else")
    ),
    "no manifest": lambda entry: (entry / cache.MANIFEST).unlink(),
    "another format": lambda entry: (entry / cache.MANIFEST).write_bytes(
        cache.seal({**json.loads((entry / cache.MANIFEST).read_bytes())["manifest"], "format": 0})
    ),
    "a file in its place": lambda entry: (shutil.rmtree(entry), entry.write_bytes(b"")),
}


@pytest.mark.parametrize("how", SPOILED)
def test_spoiled_entry_is_a_miss_that_can_be_replaced(cache_dir: Path, how: str) -> None:
    entry = put()
    SPOILED[how](entry)
    assert find() is None
    (bad,) = cache.verify()
    assert not bad.ok and bad.problem
    put()
    assert find() is not None
    assert cache.verify() == []


def test_entries_lists_oldest_first(cache_dir: Path) -> None:
    assert cache.entries() == []
    age(put("one", content=b"x" * 10), 3600)
    put("two", content=b"x" * 1000)
    one, two = cache.entries()
    assert (one.name, two.name) == ("one", "two")
    assert one.ok and one.age_s == pytest.approx(3600, abs=60) and two.age_s < 60
    assert two.bytes > 1000


def test_prune_by_age_and_by_size(cache_dir: Path) -> None:
    for days, name in ((3, "old"), (2, "middle"), (1, "young")):
        age(put(name, content=b"x" * 10_000), days * 86400)
    pruned = cache.prune(older_than_s=2.5 * 86400)
    assert pruned.entries == 1 and pruned.bytes > 10_000
    assert [entry.name for entry in cache.entries()] == ["middle", "young"]
    cache.prune(over_bytes=15_000)
    assert [entry.name for entry in cache.entries()] == ["young"]
    assert cache.prune() == cache.Pruned(0, 0, 0)


def test_prune_removes_damaged_entries(cache_dir: Path) -> None:
    put("good")
    (put("bad") / cache.LIBRARY).write_bytes(b"")
    assert cache.prune().entries == 1
    assert [entry.name for entry in cache.entries()] == ["good"]


def test_prune_removes_notes_of_what_is_gone(cache_dir: Path) -> None:
    there, gone = str(put() / cache.LIBRARY), str(cache_dir / "nowhere")
    for name, libraries in (("good", [there]), ("gone", [gone]), ("half", [there, gone])):
        answers: dict[warm.Question, warm.Answer] = {
            (name, str(number)): {"digest": "d", "library": path, "bytes": 7, "sha256": "0"}
            for number, path in enumerate(libraries)
        }
        warm.write((name,), answers, [], time.time_ns(), [])
    (cache_dir / "notes" / "damaged.json").write_text("{")
    cache.prune()
    assert warm.noted(("good",)) is not None
    assert len(list((cache_dir / "notes").iterdir())) == 1


def test_clear_removes_all(cache_dir: Path) -> None:
    put("one")
    put("two")
    (cache_dir / "tools").mkdir()
    assert cache.clear().entries == 2
    assert cache.entries() == [] and not (cache_dir / "tools").exists()


def test_prune_removes_builds_of_the_dead_and_spares_the_living(cache_dir: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from kernels.jit import cache
with cache.scratch(Path({str(cache_dir)!r})) as path:
    print(path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), stdout=subprocess.PIPE, check=False
    )
    left = Path(killed.stdout.decode().strip())
    assert killed.returncode == -9 and left.is_dir()
    with cache.scratch(cache_dir) as mine:
        assert cache.prune().stale_builds == 1
        assert not left.exists() and mine.is_dir()
    assert not mine.exists()


def test_lock_is_exclusive_and_leaves_no_file(cache_dir: Path) -> None:
    inside = []

    def work() -> None:
        for _ in range(20):
            with cache.lock(cache_dir, "digest"):
                inside.append(1)
                assert len(inside) == 1
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    failures: list[object] = []
    previous, threading.excepthook = threading.excepthook, failures.append
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = previous
    assert not failures
    assert list((cache_dir / "locks").iterdir()) == []


def test_lock_of_a_killed_process_is_free_though_its_child_lives(cache_dir: Path) -> None:
    """A child forked while the lock is held keeps no copy of it."""
    code = f"""
import os, signal, sys, time
from pathlib import Path
from kernels.jit import cache
with cache.lock(Path({str(cache_dir)!r}), "digest"):
    if os.fork() == 0:
        print("forked", flush=True)
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=child_environment(), stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert parent.stdout is not None and parent.stdout.readline() == b"forked\n"
        parent.kill()
        parent.wait()
        taken = threading.Event()

        def take() -> None:
            with cache.lock(cache_dir, "digest"):
                taken.set()

        threading.Thread(target=take, daemon=True).start()
        assert taken.wait(30)
    finally:
        os.killpg(parent.pid, 9)
        assert parent.stdout is not None
        parent.stdout.close()


HOLDER = """
import sys
from pathlib import Path
from kernels.jit import cache
with cache.lock(Path(sys.argv[1]), "digest", "tiny-binding"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(cache_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(cache_dir)],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def close_after(seconds: float, process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    timer = threading.Timer(seconds, process.stdin.close)
    timer.daemon = True
    timer.start()


def test_a_long_wait_names_the_holder_once_and_goes_on(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, holder: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(cache, "_WARN_AFTER_S", 0.1)
    close_after(1.0, holder)
    with pytest.warns(RuntimeWarning) as caught, cache.lock(cache_dir, "digest"):
        holder.wait(30)  # it was waited for, not overtaken
    assert len(caught) == 1
    said = str(caught[0].message)
    assert f"held by process {holder.pid} (" in said
    assert sys.executable in said and "which builds tiny-binding" in said
    assert str(cache_dir / "locks" / "digest") in said
    assert list((cache_dir / "locks").iterdir()) == []


def test_a_holder_that_is_stopped_is_said_to_be(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, holder: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(cache, "_WARN_AFTER_S", 0.1)
    holder.send_signal(signal.SIGSTOP)
    timer = threading.Timer(1.0, holder.kill)  # and its lock goes with it
    timer.start()
    with (
        pytest.warns(RuntimeWarning, match=rf"process {holder.pid} \(stopped: "),
        cache.lock(cache_dir, "digest"),
    ):
        timer.join()


def test_a_long_wait_survives_warnings_that_are_errors(
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    holder: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cache, "_WARN_AFTER_S", 0.1)
    close_after(0.5, holder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cache.lock(cache_dir, "digest"):
            pass
    assert capsys.readouterr().err.count(f"process {holder.pid} ") == 1


def test_a_free_lock_and_a_short_wait_say_nothing(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, holder: subprocess.Popen[bytes]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(cache, "tell", said.append)
    close_after(0.3, holder)
    with cache.lock(cache_dir, "digest"):
        pass
    monkeypatch.setattr(cache, "_WARN_AFTER_S", 0.0)
    with cache.lock(cache_dir, "digest"):
        pass
    assert said == []


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"12", b"0 h w\n", b"-1 h w\n", b"\xff\x00\n", b"99999999999999999999 h w\n", b"x" * 5000],
)
def test_a_lock_file_that_names_nobody_does_no_harm(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(cache, "_WARN_AFTER_S", 0.05)
    path = cache_dir / "locks" / "digest"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with open(path) as file:  # an older version's holder
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Timer(0.2, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with (
            pytest.warns(RuntimeWarning, match="a process that has not written its PID"),
            cache.lock(cache_dir, "digest", "what"),
        ):
            assert path.read_bytes().startswith(f"{os.getpid()} {os.uname().nodename} what\n".encode())
    assert not path.exists()


def test_a_long_wait_of_a_build_elsewhere_is_told_here(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A binding that is loaded here is built by a child, whose own output nobody sees."""
    short = "cache.tell = tell\ncache._WARN_AFTER_S = 0.1\n"
    monkeypatch.setattr(build, "_ELSEWHERE", build._ELSEWHERE.replace("cache.tell = tell\n", short))
    monkeypatch.setattr(warm, "binding_is_loaded", lambda problem: True)
    wanted = build.key(tiny_problem.binding())
    said: list[str] = []
    held, told = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.lock(cache_dir, wanted.digest, "it"):
            held.set()
            told.wait(60)

    def tell(message: str) -> None:
        said.append(message)
        told.set()

    monkeypatch.setattr(cache, "tell", tell)
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    assert build.build(wanted).path.is_file()
    thread.join()
    assert len(said) == 1 and f"process {os.getpid()} (" in said[0] and "which builds it" in said[0]


def test_a_holder_that_is_gone_or_elsewhere_is_said_to_be(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = os.uname().nodename
    path = tmp_path / "lock"
    for content, said in (
        (f"{ended.pid} {here} \n", f"process {ended.pid} (no such process"),
        (f"9999999999 {here} a\tb\n", "process 9999999999 (no such process"),
        (f"{os.getpid()} {here}-not binding\n", f"process {os.getpid()} on {here}-not, which builds binding"),
        (f"{os.getpid()} {here} binding\nleft of a longer one\n", f"process {os.getpid()} ("),
    ):
        path.write_text(content)
        with open(path) as file:
            assert cache._holder(file.fileno()).startswith(said)


@pytest.fixture
def no_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has made no temporary cache yet."""
    monkeypatch.setattr(cache, "_temporary", None)


def test_unwritable_cache_falls_back_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_temporary: None
) -> None:
    # Not by permissions: they do not stop root, who runs tests in containers.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match="KERNELS_CACHE_DIR") as caught:
        put()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        put("second")
    assert find() is not None and find("second") is not None


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_read_only_cache_with_a_hit_works_without_a_warning(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, no_temporary: None, code: int
) -> None:
    put()
    real = cache.tempfile.mkdtemp

    def refuse(*args, **kwargs):
        if str(kwargs.get("dir", "")).startswith(str(cache_dir)):
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(cache.tempfile, "mkdtemp", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find() is not None
    with pytest.warns(RuntimeWarning, match=os.strerror(code)):
        put("new")
    assert find("new") is not None


def test_a_fault_that_is_not_about_writing_is_reported(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args, **kwargs):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(cache.tempfile, "mkdtemp", fail)
    with pytest.raises(CacheError, match="Input/output error"):
        cache.writable_directory()
