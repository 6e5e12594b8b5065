"""Text that the model itself writes, as calibration text.

What a model writes is what it will be run on, in every language and style that it knows, and it
needs no file (practice: LLM-QAT, Liu et al. 2023, trains on nothing else). Tokens are drawn at
temperature 1, so they follow the model's own distribution. Each sequence begins with an opening;
where the model ends a text, the next opening follows, until the window is full.

A token is drawn with the random number of (seed, sequence, position), and a row's logits do not
depend on the other rows of a step, so neither the batch nor its order changes what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError
from fewbit.formats.registry import FLOATS, decode, encode, parse_format
from fewbit.formats.spec import NumberFormat, QuantTensor
from fewbit.model.binding import is_vector
from fewbit.model.decoder import build_program
from fewbit.model.pieces import Piece, step_of
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.runtime.chooser import choose
from fewbit.runtime.executor import Binding, Executor
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.step import PAGE
from fewbit.sampling import Block, SamplingParams, SamplingThreads, TokenSampler, sample_blocks

WRITER_FORMAT = "int8-g32"
"""Float matrices are rounded to this while the model writes: integer kernels are several times as
fast, and what is drawn differs from the source's by some thousandths of a nat per token."""

_BATCH = 32

Samples: TypeAlias = tuple[NDArray[np.int32], ...]
"""Windows of tokens, int32 [length] each."""


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """How much is written."""

    windows: int
    length: int
    """Tokens of a window, its openings included."""
    seed: int = 0
    first: int = 0
    """The number of the first sequence; those of other numbers are other samples."""
    batch: int = _BATCH
    """Sequences that are written at once; changes speed and memory only."""

    def batches(self) -> list[SampleSettings]:
        """Return settings that write the same sequences, one batch each."""
        starts = range(0, self.windows, self.batch)
        return [
            replace(self, first=self.first + start, windows=min(self.batch, self.windows - start))
            for start in starts
        ]


@dataclass(frozen=True)
class Writer:
    """What writes: an executor with pages for a batch of windows, and the ids it knows.

    `ends` are the ids after which a text is over; ids from `vocabulary` on are padding; `threads`
    draw the tokens, the caller alone where there are none.
    """

    executor: Executor
    vocabulary: int
    ends: frozenset[int]
    threads: SamplingThreads | None = None


def pages_of(settings: SampleSettings) -> int:
    """Return the pages of the KV store that a batch needs."""
    return min(settings.batch, settings.windows) * -(-settings.length // PAGE)


def writing_executor(source: ModelSource, pages: int, threads: int) -> NativeExecutor:
    """Return the model with its float matrices in `WRITER_FORMAT`, ready to write.

    Raises:
        KernelError: no kernel can run a matrix.
        NumericalError: a weight is not finite.
    """
    program = build_program(source.config)
    matrices = [slot for slot in program.slots() if not is_vector(slot)]
    forms = {slot: _writer_format(source.outline(slot)) for slot in matrices}
    kernels = {
        slot: choose(slot, QuantTensor(form, outline.shape, outline.codes))
        for slot, form in forms.items()
        for outline in (source.outline(slot),)
    }
    binding = Binding(program, _Rounded(source, forms), kernels, source.release)
    return NativeExecutor(binding, pages=pages, threads=threads)


def write_samples(
    writer: Writer,
    openings: Sequence[Sequence[int]],
    settings: SampleSettings,
    progress: Callable[[int], None] = lambda _: None,
) -> Samples:
    """Return windows of tokens that the model wrote, each int32 [length].

    Args:
        writer: the model.
        openings: token ids, at least one opening and none empty; sequence i takes the i-th, and
            where its text ends the one after that, round and round.
        settings: how much.
        progress: called with the number of tokens that each step brought.

    Raises:
        NumericalError: a logit is not finite.
    """
    numbers = range(settings.first, settings.first + settings.windows)
    found: list[NDArray[np.int32]] = []
    for start in range(0, settings.windows, settings.batch):
        chosen = numbers[start : start + settings.batch]
        pages = -(-settings.length // PAGE)
        batch = [_Sequence(n, i * pages, openings, settings) for i, n in enumerate(chosen)]
        while unfinished := [s for s in batch if len(s.tokens) < settings.length]:
            progress(_advance(writer, unfinished))
        found += [np.array(s.tokens[: settings.length], np.int32) for s in batch]
    return tuple(found)


@dataclass
class _Sequence:
    """One window being written; `done` of its tokens have run."""

    number: int
    first_page: int
    openings: Sequence[Sequence[int]]
    settings: SampleSettings
    tokens: list[int] = field(default_factory=list)
    done: int = 0
    opened: int = 0

    def __post_init__(self) -> None:
        self.sampler = TokenSampler(SamplingParams(), seed=self.settings.seed, sample=self.number)
        pages = -(-self.settings.length // PAGE)
        self.pages = np.arange(self.first_page, self.first_page + pages, dtype=np.int32)
        self.open()

    def open(self) -> None:
        """Begin the next text."""
        self.tokens += self.openings[(self.number + self.opened) % len(self.openings)]
        self.opened += 1

    def piece(self) -> Piece:
        """Return the rows that have not run; the last one's logits are wanted."""
        rows = np.array(self.tokens[self.done : self.settings.length], np.int32)
        used = self.pages[: -(-(self.done + len(rows)) // PAGE)]
        return Piece(rows, self.done, used, np.array([len(rows) - 1], np.int32))

    def take(self, token: int, ends: frozenset[int]) -> None:
        """Append what was drawn; everything before it has run."""
        self.done = len(self.tokens)
        self.tokens.append(token)
        if token in ends:
            self.open()


def _advance(writer: Writer, batch: Sequence[_Sequence]) -> int:
    """Run one step of every sequence and append the drawn tokens; return how many."""
    logits = writer.executor.step(step_of([sequence.piece() for sequence in batch]))
    blocks = [Block(s.sampler, row, len(s.tokens)) for row, s in enumerate(batch)]
    drawings = sample_blocks(logits, blocks, vocabulary=writer.vocabulary, threads=writer.threads)
    for sequence, drawn in zip(batch, drawings, strict=True):
        if drawn.fault is not None:
            raise NumericalError(f"While the model wrote calibration text, {drawn.fault}")
        sequence.take(drawn.tokens[0], writer.ends)
    return len(batch)


def _writer_format(outline: QuantTensor) -> NumberFormat:
    rounded = outline.spec in FLOATS and outline.shape[1] % 32 == 0
    return parse_format(WRITER_FORMAT) if rounded else outline.spec


class _Rounded(Mapping[Slot, QuantTensor]):
    """Reads a slot's tensor when it is asked for, and rounds it to the format that runs."""

    def __init__(self, source: ModelSource, forms: Mapping[Slot, NumberFormat]) -> None:
        self._source = source
        self._forms = forms

    def __getitem__(self, slot: Slot) -> QuantTensor:
        tensor = self._source.read(slot)
        form = self._forms.get(slot, tensor.spec)
        return tensor if form == tensor.spec else encode(decode(tensor), form)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._source.slots)

    def __len__(self) -> int:
        return len(self._source.slots)
