"""An evaluation arranged for reading: rows by axis, tiles, and what each section holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fewbit.records.drawn import Example
from fewbit.records.evaluation import Evaluation
from fewbit.records.figures import number, size
from fewbit.records.language import LanguageDetails
from fewbit.records.measurement import AxisResult
from fewbit.records.outcome import Outcome
from fewbit.report.details import Block, Examples, blocks_of
from fewbit.report.judged import Row, rows_of
from fewbit.report.machine import machine_blocks

TITLES = {
    "language": "Language",
    "tasks": "Tasks",
    "safety": "Safety",
    "long-context": "Long context",
    "tools": "Tool calls and structured output",
    "structured": "Structured output",
    "answers": "Endings of answers",
    "speed": "Speed",
    "memory": "Memory",
    "kernels": "Kernels",
    "numerics": "Numerics",
    "scan": "Scan of the artefact",
}
MEANS = {
    Outcome.ACCEPT: "Every judged slice lies inside its margin, and every finding passed or is "
    "waived by name. The command ends with 0.",
    Outcome.REJECT: "A slice lies outside its margin, or a finding failed. The command ends "
    "with 3.",
    Outcome.INCONCLUSIVE: "Nothing is shown to be outside its margin, and not everything to be "
    "inside. The command ends with 4.",
}
MOST_EXAMPLES = 8
"""Of each axis."""
_DRAWN_BY_HAND = frozenset(
    {
        "text",
        "divergence",
        "reverse_divergence",
        "histogram",
        "perplexity",
        "agreement",
        "documents",
    }
)


@dataclass(frozen=True)
class Tile:
    """A figure in large print."""

    value: str
    what: str
    bounds: str = ""


@dataclass(frozen=True)
class Group:
    """The judged rows of one axis."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Part:
    """One axis as a section."""

    name: str
    title: str
    found: AxisResult
    rows: tuple[Row, ...]
    blocks: tuple[Block, ...]
    language: LanguageDetails | None = None

    @property
    def slice_notes(self) -> tuple[str, ...]:
        """What its slices have to say, each once."""
        return tuple(dict.fromkeys(s.note for s in self.found.slices if s.note))


@dataclass(frozen=True)
class View:
    """All that a page draws of an evaluation beside the record itself."""

    groups: tuple[Group, ...]
    parts: tuple[Part, ...]
    tiles: tuple[Tile, ...]
    examples: tuple[tuple[str, tuple[Example, ...]], ...]
    """Of each axis that has any, by its title, the worst first."""
    conditions: tuple[tuple[str, str], ...]
    contents: tuple[tuple[str, str], ...]

    @property
    def counts(self) -> str:
        """How many rows have which outcome, in words."""
        found = Counter(row.word for group in self.groups for row in group.rows)
        names = {
            "ACCEPT": "inside",
            "INCONCLUSIVE": "undecided",
            "REJECT": "outside",
            "NOT JUDGED": "not judged",
        }
        return ", ".join(f"{found[word]} {name}" for word, name in names.items() if found[word])


def view_of(evaluation: Evaluation) -> View:
    """Arrange an evaluation."""
    rows = rows_of(evaluation)
    groups = _groups(rows)
    parts = tuple(_part(axis, rows) for axis in evaluation.axes)
    examples = _examples(evaluation.axes)
    return View(
        groups=groups,
        parts=parts,
        tiles=_tiles(evaluation, rows),
        examples=examples,
        conditions=_conditions(evaluation.axes),
        contents=_contents(evaluation, parts, bool(examples)),
    )


def title_of(axis: str) -> str:
    """Return an axis' name for a heading."""
    return TITLES.get(axis, axis[:1].upper() + axis[1:])


def _groups(rows: Sequence[Row]) -> tuple[Group, ...]:
    names = dict.fromkeys(row.axis for row in rows)
    return tuple(Group(title_of(n), tuple(r for r in rows if r.axis == n)) for n in names)


def _part(axis: AxisResult, rows: Sequence[Row]) -> Part:
    names = {found.name for found in axis.slices}
    ours = tuple(row for row in rows if row.slices and row.slices[0].name in names)
    language = axis.details if isinstance(axis.details, LanguageDetails) else None
    blocks = blocks_of(language, _DRAWN_BY_HAND) if language else machine_blocks(axis.details)
    kept = tuple(block for block in blocks if not isinstance(block, Examples))
    return Part(axis.axis, title_of(axis.axis), axis, ours, kept, language)


def _examples(axes: Sequence[AxisResult]) -> tuple[tuple[str, tuple[Example, ...]], ...]:
    found = ((title_of(axis.axis), _worst(axis)) for axis in axes)
    return tuple((title, examples) for title, examples in found if examples)


def _worst(axis: AxisResult) -> tuple[Example, ...]:
    blocks = [block for block in blocks_of(axis.details) if isinstance(block, Examples)]
    found = [example for block in blocks for example in block.examples]
    return tuple(sorted(found, key=lambda example: -example.harm)[:MOST_EXAMPLES])


def _tiles(e: Evaluation, rows: Sequence[Row]) -> tuple[Tile, ...]:
    tiles = [_size_tile(e)]
    by_name = {row.judgement.slice: row for row in rows}
    wanted = {
        "language/kl": "mean KL(source || candidate), nats",
        "language/perplexity": "the source's perplexity",
        "speed/decode/1": "the source's seconds a token",
        "memory/peak/16": "the source's peak memory",
    }
    for name, what in wanted.items():
        row = by_name.get(name)
        if row is not None:
            tiles.append(_figure_tile(row, what))
    judged = [row for row in rows if row.strip]
    if judged:
        inside = sum(row.word == "ACCEPT" for row in judged)
        tiles.append(Tile(f"{inside} of {len(judged)}", "judged slices inside their margins"))
    return tuple(tiles)


def _figure_tile(row: Row, what: str) -> Tile:
    figure, margin = row.judgement.figure, row.judgement.margin
    bounds = ""
    if figure.low is not None and figure.high is not None:
        low, high = number(figure.low, margin), number(figure.high, margin)
        bounds = f"{figure.level:.0%}: {low} to {high}"
    ratio = " ×" if row.unit == "×" else ""
    return Tile(f"{number(figure.value, margin)}{ratio}", what, bounds)


def _size_tile(e: Evaluation) -> Tile:
    source, candidate = e.source.bytes, e.candidate.bytes
    if not source or not candidate:
        return Tile("?", "of unknown size: a model behind an endpoint")
    bounds = f"{size(source)} to {size(candidate)}"
    return Tile(f"{candidate / source:.2f} ×", "the source's size", bounds)


def _conditions(axes: Sequence[AxisResult]) -> tuple[tuple[str, str], ...]:
    """Return on which text figures were taken, with its hash."""
    found = []
    for axis in axes:
        if isinstance(axis.details, LanguageDetails):
            text = axis.details.text
            said = (
                f"{text.name}: {text.documents} documents, {text.windows} windows of up to "
                f"{text.window_tokens} tokens, the second half of each scored: "
                f"{text.positions:,} positions of {text.tokens:,} tokens; each window begins with "
                f"{text.bos}"
            )
            found += [("text", said), ("its SHA-256", text.sha256)]
    return tuple(found)


def _contents(
    evaluation: Evaluation,
    parts: Sequence[Part],
    examples: bool,  # noqa: FBT001
) -> tuple[tuple[str, str], ...]:
    found = [("identity", "Identity"), ("gate", "Judgement"), ("size", "Size")]
    found += [("layers", "Layers")] if evaluation.tensors else []
    found += [(part.name, part.title) for part in parts]
    found += [("examples", "Examples")] if examples else []
    return (*found, ("conditions", "Conditions"))
