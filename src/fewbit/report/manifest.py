"""A manifest on a terminal: every tensor, the worst first, and what the artefact was made from."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.figures import size
from fewbit.records.manifest import Change, Manifest, TensorEntry


def print_tensors(manifest: Manifest, console: Console) -> None:
    """Print a line for each tensor, the largest relative error first, then where it came from."""
    changes = _changes((*manifest.transforms, *manifest.tuning))
    table = Table("tensor", "format", box=None, header_style="dim", pad_edge=False)
    for heading in ("bits", "error", "damping", "tokens"):
        table.add_column(heading, justify="right")
    table.add_column("made by")
    table.add_column("remarks")
    for entry in sorted(manifest.tensors, key=_badness):
        table.add_row(*_row(entry, changes.get(entry.stored, ())))
    console.print(table)
    for line in _origin(manifest):
        console.print(escape(line))


def _badness(entry: TensorEntry) -> tuple[bool, bool, float]:
    """Return what sorts the worst first: what is not there, then by error; kept ones last."""
    return entry.status != "absent", entry.status == "kept", -entry.relative_error


def _row(entry: TensorEntry, changes: tuple[str, ...]) -> tuple[str, ...]:
    is_made = entry.status == "quantized"
    how = [*changes, entry.method if is_made else entry.status]
    fallback = f"asked for {entry.fallback}" if entry.fallback else ""
    remarks = "; ".join(part for part in (fallback, entry.reason, *entry.remarks) if part)
    return (
        escape(entry.stored or entry.source),
        entry.format,
        f"{entry.bits_per_weight:.2f}",
        f"{entry.relative_error:.4f}" if is_made else "",
        "" if entry.damping is None else f"{entry.damping:g}",
        "" if entry.calibration_tokens is None else f"{entry.calibration_tokens:,}",
        escape(" + ".join(how)),
        escape(remarks),
    )


def _changes(changes: tuple[Change, ...]) -> Mapping[str, tuple[str, ...]]:
    """Return the names of what changed each tensor."""
    found: dict[str, tuple[str, ...]] = {}
    for change in changes:
        for name in change.tensors:
            found[name] = (*found.get(name, ()), change.name)
    return found


def _origin(manifest: Manifest) -> list[str]:
    """Return what went in, each with its hash, and with what it was made."""
    lines = [
        f"Made from {manifest.source.path}, tensors' hash {manifest.source.sha256}, by the recipe "
        f"'{manifest.recipe.name}': {size(manifest.tensor_bytes)} of tensors."
    ]
    for what, text in (("Calibrated", manifest.calibration), ("Tuned", manifest.tuning_text)):
        if text is not None:
            names = ", ".join(part.name for part in text.texts)
            lines.append(
                f"{what} on {text.windows} windows, {text.counted} tokens ({names}), hash "
                f"{text.tokens_sha256}."
            )
    if manifest.importance is not None:
        found = manifest.importance
        lines.append(f"Weighed by the importance matrix {found.name}, hash {found.sha256}.")
    if manifest.making is not None:
        named = ", ".join(f"{name} {version}" for name, version in manifest.making.versions.items())
        lines.append(f"Made with {named}, on {manifest.making.kernels}.")
    return lines
