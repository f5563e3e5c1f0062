"""One candidate and one saved input, without a judge: what profilers start.

``python -m kernels.evaluate.workers.entry --replay FOLDER [--calls N]`` loads the candidate that
``FOLDER/replay.json`` names, the inputs beside it, calls once to build and warm up, and then N
times between cudaProfilerStart and cudaProfilerStop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.evaluate.workers.exchange import map_value, write_value

__all__ = ["DESCRIPTION", "built_libraries", "replay", "save"]

DESCRIPTION = "replay.json"
_SYSTEM = ("/usr/", "/lib", "/dev/", "/proc/", "/opt/", "/memfd")


def save(folder: Path, inputs: Any) -> dict[str, Any]:
    """Write the inputs; the reply is what :func:`replay` reads them by."""
    return {"inputs": write_value(inputs, folder / "replay.in")}


def replay(folder: str, calls: int) -> int:
    """Run the saved call. Returns the exit code; raises what the candidate raises."""
    import torch

    from kernels.evaluate.workers.candidate import Candidate

    home = Path(folder)
    words: Mapping[str, Any] = json.loads((home / DESCRIPTION).read_text(encoding="utf-8"))
    candidate = Candidate(words["device"], timed=False)
    candidate.open(words["path"], words["package"], words.get("popcorn"))
    candidate.construct(folder, words["init"], words["state"], words["seed"])
    inputs, storages = map_value(home, words["inputs"])
    from kernels.evaluate.workers.calls import place

    inputs, _ = place(inputs, storages, words["device"])
    model = candidate.model
    on_cuda = words["device"] == "cuda"
    with torch.no_grad():
        model(*inputs)
        if on_cuda:
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
        for _ in range(calls):
            model(*inputs)
        if on_cuda:
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
    return 0


def built_libraries() -> Sequence[str]:
    """Mapped shared libraries that no package manager brought: compiled for this candidate."""
    import torch

    packages = str(Path(torch.__file__).resolve().parent.parent)
    paths = set()
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.split(maxsplit=5)[5] if len(line.split(maxsplit=5)) == 6 else ""
        if path.startswith("/") and ".so" in Path(path).name:
            paths.add(path)
    own = {path for path in paths if not path.startswith(_SYSTEM) and not path.startswith(packages)}
    return sorted(path for path in own if "/lib-dynload/" not in path and "/lib/libpython" not in path)
