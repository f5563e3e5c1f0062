"""The quickstart notebook, executed in a real Jupyter kernel with an empty kernel cache."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "quickstart.ipynb"


def test_the_notebook_is_kept_without_outputs() -> None:
    """Outputs would be one machine's, and every run would change the file."""
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs; the first call shows what it compiles, and the results agree."""
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("KERNELS_PREBUILD", raising=False)
    # What a debugger of the test run wants of every Python is no part of a user's kernel.
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(ROOT)}}).execute()

    printed = [_text(cell) for cell in notebook.cells if cell.cell_type == "code"]
    first_call = printed[1]
    assert re.search(r"compil\w+.*gqa_attn", first_call), first_call
    assert "torch.Size([2, 80, 8, 32])" in first_call
    assert "largest difference from the reference" in printed[2]
    assert "gradient for q agrees: (2, 80, 8, 32)" in printed[3]
    assert re.search(r"^ModelNew +[\d.]+ us", printed[4], re.MULTILINE), printed[4]
    # numpy is optional to torch, which says once that it is not there.
    warned = [text for text in _errors(notebook) if "Failed to initialize NumPy" not in text]
    assert not warned, warned


def _errors(notebook: nbformat.NotebookNode) -> list[str]:
    """What the cells wrote to standard error: warnings, and nothing else that a reader should see."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]


def _text(cell: nbformat.NotebookNode) -> str:
    """All that a cell shows, as plain text."""
    parts = []
    for output in cell.outputs:
        parts.append(
            output.text if output.output_type == "stream" else output.get("data", {}).get("text/plain", "")
        )
    return "\n".join(parts)
