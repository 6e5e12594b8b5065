"""A gate from `gate.toml`, or the built-in one; docs/evaluation/gate.md says why its margins.

The file has `level`, `[[slices]]` tables with the fields of `SliceRule` (match and margin at least)
and `[[waive]]` tables with a finding and a reason.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fewbit.errors import BadFileError, UsageError
from fewbit.evaluate.gating.bootstrap import MINIMUM_DOCUMENTS
from fewbit.records.gate import Gate, SliceRule, Waiver
from fewbit.toml_file import read_toml, require_known_keys

AXES = (
    "language",
    "tasks",
    "safety",
    "long-context",
    "tools",
    "structured",
    "answers",
    "speed",
    "memory",
    "kernels",
    "numerics",
    "scan",
)
"""What names of slices and findings that can be judged begin with."""

_TEXTS, _PROMPTS, _TURNS, _PROCESSES = 12, 40, 12, 5
"""Items that slices of the built-in suite have at least: documents, prompts, turns of speed,
processes."""

_OF_ITSELF = 0.2
"""Of the source's own rate that endings may grow by on top of their margin."""

DOMAINS = ("prose", "code", "chat", "languages")
"""Of the text, each with a margin of its own."""

DEFAULT = Gate(
    slices=(
        SliceRule(match="language/kl", margin=0.05, minimum_items=_TEXTS),
        SliceRule(match="language/perplexity", margin=1.03, minimum_items=_TEXTS),
        *(
            SliceRule(
                match=f"language/kl/{domain}", margin=0.1, minimum_items=_TEXTS, optional=True
            )
            for domain in DOMAINS
        ),
        SliceRule(match="tasks/*", margin=0.04, pool=True, optional=True),
        SliceRule(match="safety/*", margin=0.09, pool=True, minimum_items=_PROMPTS, optional=True),
        SliceRule(match="long-context/kl", margin=0.1, minimum_items=_TEXTS, optional=True),
        SliceRule(match="long-context/recall", margin=0.1, minimum_items=_PROMPTS, optional=True),
        SliceRule(
            match="long-context/*", margin=0.1, pool=True, minimum_items=_PROMPTS, optional=True
        ),
        SliceRule(match="tools/loops", margin=0.05, relative=_OF_ITSELF, optional=True),
        SliceRule(match="answers/cap", margin=0.05, relative=_OF_ITSELF, optional=True),
        SliceRule(match="tools/*", margin=0.06, pool=True, optional=True),
        SliceRule(match="structured/*", margin=0.08, pool=True, optional=True),
        SliceRule(match="speed/decode/*", margin=1.05, minimum_items=_TURNS, optional=True),
        SliceRule(match="speed/first-token/*", margin=1.1, minimum_items=_TURNS, optional=True),
        SliceRule(match="speed/task", margin=1.1, minimum_items=_TURNS, optional=True),
        SliceRule(
            match="memory/*",
            margin=1.05,
            minimum_items=_PROCESSES,
            minimum_clusters=_PROCESSES,
            optional=True,
        ),
        SliceRule(match="numerics/rare-experts", margin=0.1, minimum_items=_TEXTS, optional=True),
        SliceRule(match="numerics/clipped", margin=0.001, minimum_items=_TEXTS, optional=True),
    )
)
"""What is asked where nothing else is declared."""


def find_gate(path: Path | None) -> Gate:
    """Return the gate of a file, or the built-in one. Raises as `read_gate`."""
    return DEFAULT if path is None else read_gate(path)


def read_gate(path: Path) -> Gate:
    """Read a gate from a TOML file with the fields of `Gate`.

    Raises:
        MissingError: there is no such file.
        BadFileError: it is not TOML, or has a key that no gate has, or a value of another kind.
        UsageError: a value that cannot be, as `require_possible`.
    """
    table = read_toml(path, "gate")
    for what, found, known in _tables(table):
        require_known_keys(f"The gate {path}", what, found, known)
    try:
        gate = msgspec.convert({"name": str(path), **table}, Gate)
    except msgspec.ValidationError as error:
        raise BadFileError(f"The gate {path} is not valid: {error}.") from error
    require_possible(gate)
    return gate


def require_possible(gate: Gate) -> None:
    """Refuse a gate that nothing could be judged by.

    Raises:
        UsageError: names what cannot be, and what can.
    """
    if not 0.5 < gate.level < 1.0:
        raise UsageError(
            f"The gate '{gate.name}' has the level {gate.level:g}; give one between 0.5 and 1."
        )
    if not gate.slices:
        raise UsageError(f"The gate '{gate.name}' has no [[slices]]; declare a margin for some.")
    for rule in gate.slices:
        _require_possible_rule(gate, rule)
    for waiver in gate.waive:
        _require_reason(gate, waiver)


def _require_possible_rule(gate: Gate, rule: SliceRule) -> None:
    where = f"The rule '{rule.match}' of the gate '{gate.name}'"
    axis = rule.match.partition("/")[0]
    if axis not in AXES and not set("*?[") & set(axis):
        near = difflib.get_close_matches(axis, AXES, 2)
        offer = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(AXES)}."
        raise UsageError(f"{where} begins with no axis; {offer}")
    if not math.isfinite(rule.margin):
        raise UsageError(f"{where} has the margin {rule.margin}; give a number.")
    if not 0.0 <= rule.relative <= 1.0:
        raise UsageError(f"{where} has relative = {rule.relative:g}; give a number from 0 to 1.")
    if rule.minimum_clusters < MINIMUM_DOCUMENTS or rule.minimum_items < rule.minimum_clusters:
        raise UsageError(
            f"{where} asks for {rule.minimum_items} items in {rule.minimum_clusters} clusters; "
            f"nothing is judged on fewer than {MINIMUM_DOCUMENTS} clusters, and items are no "
            "fewer than clusters (minimum_items, minimum_clusters)."
        )


def _require_reason(gate: Gate, waiver: Waiver) -> None:
    if not waiver.reason.strip():
        raise UsageError(
            f"The gate '{gate.name}' waives '{waiver.finding}' without a reason; give one."
        )


def _tables(table: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], tuple[str, ...]]]:
    """Yield each table, what it is, and the keys that it may have."""
    own = tuple(name for name in Gate.__struct_fields__ if name != "name")
    yield "a gate", table, own
    for key, what, kind in (("slices", "a slice", SliceRule), ("waive", "a waiver", Waiver)):
        rows = table.get(key, [])
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict):
                yield what, row, kind.__struct_fields__
