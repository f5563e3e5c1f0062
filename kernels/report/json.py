"""Results as JSON text."""

from __future__ import annotations

import json
from typing import Any

from kernels.evaluate.result import as_json

__all__ = ["json_text"]


def json_text(results: Any) -> str:
    """Results, or a list of them, as indented JSON; numbers JSON has no word for are strings."""
    return json.dumps(as_json(results), indent=2, ensure_ascii=False)
