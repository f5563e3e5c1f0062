"""The cache directory: what is in it, how an entry gets in, and how it is trusted.

::

    <cache>/entries/<name>-<base>-<compilers>/   one library; published by one rename
        manifest.json                            what it is, and the library's size and sha256
        library.so
    <cache>/work/<random>/                       a build in progress, private to one process
    <cache>/locks/<digest>                       flock; says who builds what; removed after the build
    <cache>/notes/*.json                         which entry answered which question (see warm.py)
    <cache>/tools/*.json                         versions of compilers, by the file they are

An entry is used only when its manifest and its library are whole; anything else is a
miss and is replaced. ``store`` reads and publishes entries, ``folders`` says where to
write, ``locks`` keeps two processes from building one library, ``upkeep`` lists and
removes.
"""

from kernels.jit.cache.folders import cache_directory, scratch, writable_directory
from kernels.jit.cache.locks import lock, tell
from kernels.jit.cache.store import FORMAT, LIBRARY, MANIFEST, find, publish, remove, seal
from kernels.jit.cache.upkeep import Entry, Pruned, clear, entries, prune, verify

__all__ = [
    "FORMAT",
    "LIBRARY",
    "MANIFEST",
    "Entry",
    "Pruned",
    "cache_directory",
    "clear",
    "entries",
    "find",
    "lock",
    "prune",
    "publish",
    "remove",
    "scratch",
    "seal",
    "tell",
    "verify",
    "writable_directory",
]
