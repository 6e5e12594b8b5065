"""The error for a tensor that a checkpoint does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from fewbit.checkpoint.mapped import quoted
from fewbit.errors import MissingError


def missing_tensor(path: Path, name: str, present: Iterable[str]) -> MissingError:
    """Return an error that names the tensor and those with the nearest names."""
    near = difflib.get_close_matches(name, list(present), 3)
    hint = f"near matches: {', '.join(near)}" if near else "no name is near it"
    return MissingError(f"{path} has no tensor {quoted(name)}; {hint}.")
