"""What `fewbit quantize` did, on a terminal."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.allocation import AllocationRecord
from fewbit.records.figures import size
from fewbit.records.manifest import DraftFacts, Manifest, TensorEntry

_WORST = 3
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?")


def print_manifest(manifest: Manifest, console: Console) -> None:
    """Print formats with their errors, the worst tensors, every fallback, and the size."""
    console.print(_formats(manifest.tensors))
    for entry in _worst(manifest.tensors):
        console.print(f"  {escape(entry.stored)}: relative error {entry.relative_error:.4f}")
    for entry in manifest.tensors:
        if entry.fallback or entry.status == "absent":
            console.print(f"[yellow]{escape(entry.source)}[/]: {escape(entry.reason)}")
    for remark, count in _remarks(manifest.tensors).items():
        matrices = "1 matrix" if count == 1 else f"{count} matrices"
        console.print(f"[yellow]{matrices}[/]: {escape(remark)}")
    console.print(
        f"{size(manifest.tensor_bytes)} of tensors as promised, {manifest.bits_per_weight:.2f} "
        f"bits per weight; the source has {manifest.source_bits_per_weight:.2f}."
    )
    if manifest.draft is not None:
        console.print(escape(_cut(manifest.draft)))
    for line in _course(manifest):
        console.print(escape(line))
    if manifest.allocation is not None:
        for line in _allocation(manifest.allocation):
            console.print(escape(line))
    if manifest.source.quantized:
        console.print(
            "[yellow]The source is itself quantized[/]: errors are relative to its values, not to "
            "those of the model it was made from."
        )


def _cut(draft: DraftFacts) -> str:
    return (
        f"A draft for {draft.target}: its head has {draft.kept:,} of {draft.vocabulary:,} tokens, "
        f"chosen by {draft.counted_tokens:,} of text; of text that was not counted they are "
        f"{draft.coverage:.1%}."
    )


def _formats(entries: Sequence[TensorEntry]) -> Table:
    groups: dict[tuple[str, str], list[TensorEntry]] = defaultdict(list)
    for entry in entries:
        groups[entry.source_format, entry.format].append(entry)
    table = Table("source", "format", "tensors", "size", "mean error", "max error")
    for (before, after), group in groups.items():
        errors = [entry.relative_error for entry in group]
        kept = all(entry.status == "kept" for entry in group)
        shown = ("kept", "") if kept else (f"{sum(errors) / len(errors):.4f}", f"{max(errors):.4f}")
        total = size(sum(entry.bytes for entry in group))
        table.add_row(before, after, str(len(group)), total, *shown)
    return table


def _course(manifest: Manifest) -> list[str]:
    """Return what the model was calibrated on, and what was done beside rounding."""
    lines = []
    text, given = manifest.calibration, manifest.importance
    if text is not None:
        names = ", ".join(f"{part.name} ({part.windows})" for part in text.texts)
        lines.append(f"Calibrated on {text.windows} windows, {text.counted} tokens: {names}.")
        lines += [f"{remark}." for remark in text.remarks]  # which begin with the name of a file
    if given is not None:
        lines.append(f"Weighed by the importance matrix {given.name}.")
    changes = (*manifest.transforms, *manifest.tuning)
    return lines + [f"{change.name}: {change.detail}." for change in changes]


def _allocation(found: AllocationRecord) -> list[str]:
    """Return how the formats were chosen: the two choices that were compared, and which won."""
    one, other = found.allocated, found.uniform
    lines = [
        f"Formats were chosen for {size(found.target_bytes)} ({found.counts}). On "
        f"{found.held_out_tokens} held-out tokens, built by {found.method}, the allocated choice "
        f"has a KL of {one.divergence:.4f} +- {one.deviation:.4f} nats at {size(one.bytes)}, the "
        f"best uniform one ({other.what}) {other.divergence:.4f} +- {other.deviation:.4f} at "
        f"{size(other.bytes)}; the {found.chosen} one was taken."
    ]
    return [*lines, *(f"{note[0].upper()}{note[1:]}." for note in found.notes)]


def _remarks(entries: Sequence[TensorEntry]) -> dict[str, int]:
    """Return each kind of remark with the number of its matrices.

    Remarks that differ in their numbers alone (how many tokens reached an expert, how far damping
    was raised) are one kind; the manifest has them all.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        for remark in entry.remarks:
            found[_NUMBER.sub("#", remark)].append(remark)
    return {_ranges(remarks): len(remarks) for remarks in found.values()}


def _ranges(remarks: Sequence[str]) -> str:
    """Return remarks that differ in numbers as one, each number from its least to its largest."""
    columns = zip(*(_NUMBER.findall(remark) for remark in remarks), strict=True)
    ends = [(min(column, key=float), max(column, key=float)) for column in columns]
    shown = iter(low if low == high else f"{low} to {high}" for low, high in ends)
    return _NUMBER.sub(lambda _: next(shown), remarks[0])


def _worst(entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    quantized = [entry for entry in entries if entry.status == "quantized"]
    return sorted(quantized, key=lambda entry: -entry.relative_error)[:_WORST]
