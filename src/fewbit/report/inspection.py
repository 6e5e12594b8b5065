"""What `fewbit inspect` found, on a terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.figures import size
from fewbit.records.kernels import KernelRecord
from fewbit.records.model import FormatShare, Inspection
from fewbit.records.tokens import TokenizerRecord, TokenRecord
from fewbit.report.kernels import GATHERED


def print_inspection(inspection: Inspection, console: Console) -> None:
    """Print facts, formats, kernels and hazards, the hazards last."""
    console.print(f"[bold]{escape(inspection.facts.name)}[/]", highlight=False)
    console.print(_pairs([*_model_rows(inspection), *_tokenizer_rows(inspection)]))
    console.print()
    console.print(_formats(inspection.facts.formats))
    if inspection.kernels:
        console.print()
        console.print(_kernels(inspection.kernels))
    for hazard in inspection.hazards:
        console.print(f"[yellow]{hazard.name}[/]: {escape(hazard.meaning)}", highlight=False)


def _model_rows(inspection: Inspection) -> list[tuple[str, str]]:
    i, facts = inspection, inspection.facts
    heads = f"heads: {i.heads} for queries, {i.kv_heads} for keys, {i.head_dim} wide"
    table = "one table with the head" if i.tied else "a table of its own"
    context = f"{i.context:,} positions"
    if i.windowed_layers:
        context += f"; {i.windowed_layers} of {i.layers} layers attend within a window"
    return [
        ("path", facts.path),
        ("architecture", facts.architecture),
        ("layers", f"{i.layers}, {i.hidden} wide, {_mlp(i)}, {heads}"),
        ("parameters", f"{facts.parameters:,}"),
        ("weights", f"{size(facts.bytes)}, {facts.bits_per_weight:.2f} bits per weight"),
        ("context", context),
        ("embedding", f"{i.vocabulary:,} rows, {table}"),
    ]


def _mlp(inspection: Inspection) -> str:
    i = inspection
    if not i.experts:
        return f"MLP {i.intermediate}"
    mixture = f"{i.experts_used} of {i.experts} experts of {i.expert_width}"
    if i.mixture_layers == i.layers:
        return mixture
    return (
        f"{mixture} in {i.mixture_layers} of {i.layers} layers, MLP {i.intermediate} in the others"
    )


def _tokenizer_rows(inspection: Inspection) -> list[tuple[str, str]]:
    template = ("chat template", "yes" if inspection.chat_template else "none")
    record = inspection.tokenizer
    if record is None:
        return [("tokenizer", "none that can be used"), template]
    return [
        ("tokenizer", f"{record.kind}, {record.vocabulary_size:,} ids, from {record.source}"),
        ("begins a text with", _prefix(record)),
        ("ends a text", ", ".join(_token(t) for t in record.end_of_generation) or "nothing"),
        template,
    ]


def _prefix(record: TokenizerRecord) -> str:
    if not record.prefix:
        return "nothing"
    known = {record.bos.id: record.bos.text} if record.bos else {}
    return ", ".join(f"{known.get(token, '')} ({token})".strip() for token in record.prefix)


def _token(token: TokenRecord) -> str:
    return f"{token.text} ({token.id})"


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, escape(value))
    return table


def _formats(shares: Iterable[FormatShare]) -> Table:
    table = _headed("format", "tensors", "weights", "size", "bits per weight")
    for share in sorted(shares, key=lambda share: -share.bytes):
        bits = 8 * share.bytes / max(1, share.weights)
        counts = f"{share.tensors:,}", f"{share.weights:,}", size(share.bytes), f"{bits:.2f}"
        table.add_row(share.format, *counts)
    return table


def _kernels(kernels: Iterable[KernelRecord]) -> Table:
    """Show kernels of the same format and kind on one line, with a note where they have one."""
    groups: defaultdict[tuple[str, str, str, str], list[KernelRecord]] = defaultdict(list)
    for record in kernels:
        groups[record.kernel, record.format, record.activations, record.note].append(record)
    table = _headed("kernel", "matrices", "size")
    table.add_column("of", justify="left")
    table.add_column("activations", justify="left")
    table.add_column("note", justify="left")
    for (kernel, form, activations, note), group in groups.items():
        total = size(sum(record.bytes for record in group))
        said = "; ".join(filter(None, (GATHERED if group[0].gathered else "", note)))
        table.add_row(kernel, str(len(group)), total, form, activations, escape(said))
    return table


def _headed(first: str, *others: str) -> Table:
    table = Table(first, box=None, header_style="dim", pad_edge=False)
    for heading in others:
        table.add_column(heading, justify="right")
    return table
