"""Where two models come from, and how each says it wants to be sampled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit.checkpoint.checkpoint import Checkpoint, HuggingFaceFacts
from fewbit.errors import IdentityError

_OF_THE_WRITER = frozenset({"transformers_version", "_from_model_config"})
"""Keys of a generation configuration that say who wrote it."""

_SNAPSHOTS = "snapshots"
"""The folder of a hub's cache whose folders are revisions."""


def compare_generation(source: Checkpoint, candidate: Checkpoint) -> str:
    """Return how the generation configurations of two models agree, in words.

    GGUF files have no place for one, but for the tokens that end a generation.

    Raises:
        IdentityError: both are folders, and theirs differ; the first key is named.
    """
    one, other = _generation(source), _generation(candidate)
    if one is None or other is None:
        return "a GGUF file has none beside the tokens that end a generation"
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            raise IdentityError(
                f"The generation configuration's '{key}' is {one.get(key)!r} in the source and "
                f"{other.get(key)!r} in the candidate; give the candidate the source's "
                "generation_config.json."
            )
    return f"{len(one)} settings" if one else "none"


def revision_of(path: Path) -> str:
    """Return the revision that a path in a hub's cache names, or nothing."""
    parts = path.resolve().parts
    places = [i for i, part in enumerate(parts[:-1]) if part == _SNAPSHOTS]
    return parts[places[-1] + 1] if places else ""


def _generation(checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    facts = checkpoint.facts
    if not isinstance(facts, HuggingFaceFacts):
        return None
    found = facts.generation_config or {}
    return {key: value for key, value in found.items() if key not in _OF_THE_WRITER}
