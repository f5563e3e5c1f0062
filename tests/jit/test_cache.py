"""What the cache directory keeps, trusts and throws away."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from jit_support import child_environment

from kernels.errors import CacheError
from kernels.jit import cache, warm
from kernels.jit.cache import folders


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


@pytest.fixture
def no_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has made no temporary cache yet."""
    monkeypatch.setattr(folders, "_temporary", None)


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
    real = tempfile.mkdtemp

    def refuse(*args, **kwargs):
        if str(kwargs.get("dir", "")).startswith(str(cache_dir)):
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
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

    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    with pytest.raises(CacheError, match="Input/output error"):
        cache.writable_directory()
