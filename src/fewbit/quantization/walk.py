"""Walking a Program over calibration sequences, cut where linear layers read their input.

At each cut the statistics of that input are taken and handed to a visitor, which may give back new
tensors for the layers; then the walk goes on with these. So every op runs once, and a layer's input
comes from layers that are quantized already. What must be kept between two cuts is the residual
stream and the layers' input, for all tokens. Where the input is too wide for that (inside the MLP
of a larger model), its statistics are taken in passing, a few sequences at a time, and the ops
since the cut before run a second time on the way on. The executor is row invariant, so neither that
nor the number of sequences run together changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.calibration import CalibrationSet
from fewbit.calibrate.collect import Collector
from fewbit.errors import UsageError
from fewbit.methods.statistics import InputStatistics
from fewbit.program import OUTSIDE, Add, Buffer, Linear, Mixture, Program, RopeTable, Slot
from fewbit.quantization.experts import ExpertInput, MixtureInput, Part, Tokens, named, parts
from fewbit.records.figures import size
from fewbit.runtime.native import Pool

Rows: TypeAlias = NDArray[np.float32]

ROOM = 2 << 30
"""Bytes of hidden states that a walk keeps at most."""

_PIECE_ROWS = 4096
"""Rows of whole sequences that run at once."""


@dataclass(frozen=True)
class Cut:
    """Linear layers that read one buffer, and where the Program is cut before them."""

    index: int
    """Of the first of them among the Program's ops."""
    x: Buffer
    layers: tuple[Linear, ...]
    part: Part | None = None
    """Where they are matrices of one expert: which, of the mixture at `index`."""

    @property
    def inside(self) -> bool:
        """Whether it lies in a decoder layer, not before the head."""
        return self.layers[0].layer != OUTSIDE

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The matrices, in the Program's order."""
        return tuple(op.weight for op in self.layers)


@dataclass(frozen=True)
class Stage:
    """The ops from a kept cut (or the start) to a cut, and what is kept there for the next."""

    cut: Cut
    ops: range
    kept: tuple[Buffer, ...]
    """The buffers that ops behind the cut read; empty where the next stage starts as early."""


class RunOps(Protocol):
    """Runs ops of the Program with the tensors that are bound now, over whole sequences."""

    def __call__(  # noqa: PLR0913
        self,
        ops: range,
        lengths: Sequence[int],
        given: Mapping[Buffer, Rows],
        wanted: Sequence[Buffer],
        tokens: NDArray[np.int32],
        *,
        into: Mapping[Buffer, Rows] | None = None,
    ) -> dict[Buffer, Rows]:
        """Return the wanted buffers, float32 [rows, width]; rows are the sequences' in order.

        Where `into` has arrays for them, they are written there.
        """
        ...

    def expert(self, op: Mixture, number: int, x: Rows) -> Rows:
        """Return activation(gate(x)) * up(x) of an expert, float32 [rows, width]."""
        ...


class CutInput(Protocol):
    """The input of a cut's layers, looked at when asked."""

    def __call__(self) -> InputStatistics:
        """Return the statistics of all rows that count, an expert's with a share of all tokens'."""
        ...

    def own(self) -> InputStatistics:
        """Return the statistics of the rows that reach the layers, and of no others."""
        ...

    def sample(self, rows: int) -> Rows:
        """Return about so many of the rows that count, evenly spread, float32 [rows, width]."""
        ...


Visit: TypeAlias = Callable[[Cut, CutInput], None]
"""Called at each cut with what gives the statistics of its input; a visitor that does not ask
for them (its tensors are there already) saves the work."""


def cuts(program: Program) -> tuple[Cut, ...]:
    """Return the cuts of a Program in order; layers that read the same buffer share one.

    Before a mixture there are two for each expert, all at the mixture's own place.
    """
    readers: dict[Buffer, list[tuple[int, Linear]]] = {}
    for index, op in enumerate(program.ops):
        if isinstance(op, Linear):
            readers.setdefault(op.x, []).append((index, op))
    found = [Cut(all_[0][0], x, tuple(op for _, op in all_)) for x, all_ in readers.items()]
    for index, op in enumerate(program.ops):
        if isinstance(op, Mixture):
            found += [Cut(index, part.buffer, part.layers, part) for part in parts(op)]
    return tuple(sorted(found, key=lambda cut: cut.index))


def stages(program: Program, rows: int, room: int = ROOM) -> tuple[Stage, ...]:
    """Plan a walk over so many rows.

    Args:
        program: the model.
        rows: tokens of all sequences.
        room: bytes of hidden states that may be kept.

    Raises:
        UsageError: not even the smallest cut of a layer fits.
    """
    found = cuts(program)
    live = {index: _live(program, index) for index in {cut.index for cut in found}}
    needed = [4 * rows * _width(program, live[cut.index]) for cut in found]
    both = list(zip(found, needed, strict=True))
    of_experts = [taken for cut, taken in both if cut.part]
    least = max(of_experts, default=min(taken for cut, taken in both if cut.inside))
    if least > room:
        raise UsageError(
            f"The hidden states of {rows} calibration tokens take {size(least)} at least, "
            f"and {size(room)} are set aside for them; calibrate on fewer or shorter windows."
        )
    planned, start = [], 0
    for cut, taken in zip(found, needed, strict=True):
        kept = live[cut.index] if taken <= room else ()
        planned.append(Stage(cut, range(start, cut.index), kept))
        start = cut.index if kept else start
    return tuple(planned)


@dataclass(frozen=True)
class WalkOptions:
    """How statistics are taken, and how much memory hidden states may take."""

    pool: Pool
    gram: frozenset[Slot] | None = None
    """The layers whose inputs' Gram matrix is needed; None for all."""
    room: int = ROOM
    source: RunOps | None = None
    """Runs the source's tensors beside the others, so that statistics with a Gram matrix have the
    drift to what these read, and the lag behind their residual stream where outputs are added to
    it; an expert's have neither, because the two route differently."""
    propagation: float = 1.0
    """The part of the differences that drift and lag are."""

    def needs_gram(self, slots: Sequence[Slot]) -> bool:
        """Whether one of some layers needs the Gram matrix of its input."""
        return self.gram is None or not self.gram.isdisjoint(slots)


def walk(
    program: Program, calibration: CalibrationSet, run: RunOps, visit: Visit, options: WalkOptions
) -> None:
    """Visit every cut in order, each with the statistics of its input.

    Args:
        program: the model.
        calibration: what runs through it.
        run: runs ops with the tensors that are bound when it is called.
        visit: what happens at each cut.
        options: how statistics are taken, and the memory for hidden states.

    Raises:
        NumericalError: a value is not finite; says which layer's input, in which window and token.
        UsageError: as `stages`.
    """
    states = _States(program, calibration, run)
    beside = None if options.source is None else _States(program, calibration, options.source)
    room = options.room if beside is None else options.room // 2
    for stage in stages(program, sum(calibration.lengths), room):
        for walked in (states, beside):
            if stage.kept and walked is not None:
                walked.advance(stage)
        visit(stage.cut, _input(states, beside, stage, options))


def _input(states: _States, beside: _States | None, stage: Stage, options: WalkOptions) -> CutInput:
    if stage.cut.part is None:
        return _Statistics(states, beside, stage, options)
    return ExpertInput(states.mixture(stage.cut.part.mixture, options), stage.cut.part)


@dataclass(frozen=True)
class _Statistics:
    """Takes the statistics of a cut's input when asked; see `CutInput`."""

    states: _States
    beside: _States | None
    """Of the source."""
    stage: Stage
    options: WalkOptions

    def __call__(self) -> InputStatistics:
        cut, masks = self.stage.cut, self.states.calibration.masks
        width = self.states.program.widths[cut.x]
        gram = self.options.needs_gram(cut.slots)
        if gram and self.beside is not None:
            return self._besides(self.beside)
        collector = Collector(width, self.options.pool, gram=gram)
        for sequences, x in self.states.inputs(self.stage):
            with named(cut.slots):
                collector.add(x, masks[sequences.start : sequences.stop], sequences.start)
        return collector.statistics()

    def _besides(self, source: _States) -> InputStatistics:
        """Return the statistics with drift and lag."""
        cut, program, masks = self.stage.cut, self.states.program, self.states.calibration.masks
        stream = _stream(program, cut)
        read = (cut.x,) if stream is None else (cut.x, stream)
        outputs = 0 if stream is None else program.widths[stream]
        part = np.float32(self.options.propagation)
        collector = Collector(
            program.widths[cut.x], self.options.pool, gram=True, drift=True, outputs=outputs
        )
        both = (states.buffers(self.stage, read) for states in (self.states, source))
        for (sequences, found), (_, exact) in zip(*both, strict=True):
            x, own = found[cut.x], masks[sequences.start : sequences.stop]
            with named(cut.slots):
                collector.add(x, own, sequences.start)
            collector.add_drift(part * (exact[cut.x] - x), x, own)
            if stream is not None:
                collector.add_lag(part * (exact[stream] - found[stream]), x, own)
        return collector.statistics()

    def own(self) -> InputStatistics:
        return self()

    def sample(self, rows: int) -> Rows:
        masks = self.states.calibration.masks
        step = max(1, self.states.calibration.facts.counted // rows)
        kept, seen = [], 0
        for sequences, x in self.states.inputs(self.stage):
            counted = x[np.concatenate(masks[sequences.start : sequences.stop])]
            kept.append(counted[-seen % step :: step])
            seen += len(counted)
        return np.concatenate(kept)


class _States:
    """The buffers of all tokens that are kept at the last cut, float32 [tokens, width] each."""

    def __init__(self, program: Program, calibration: CalibrationSet, run: RunOps) -> None:
        self.program = program
        self.calibration = calibration
        self._run = run
        self._tokens = np.concatenate(calibration.windows)
        self._kept: dict[Buffer, Rows] = {}
        self._idle: list[Rows] = []
        self._mixture: MixtureInput | None = None

    def mixture(self, op: Mixture, options: WalkOptions) -> MixtureInput:
        """Return what a mixture reads, which is kept; the same for all of its experts."""
        if self._mixture is None or self._mixture.mixture is not op:
            self._mixture = MixtureInput(
                op,
                self._kept[op.x],
                self._kept[op.router],
                Tokens(tuple(self._slices()), self.calibration.masks),
                self._run.expert,
                options.pool,
                options.needs_gram([op.weight for part in parts(op) for op in part.layers]),
            )
        return self._mixture

    def advance(self, stage: Stage) -> None:
        """Run to a cut and keep what is read behind it.

        What is read no more is written over later, not at once: ops still read it.
        """
        wanted = [name for name in stage.kept if name not in self._kept]
        arrays = {name: self._array(self.program.widths[name]) for name in wanted}
        for _ in self._pieces(stage.ops, wanted, arrays) if wanted else ():
            pass
        both = {**self._kept, **arrays}
        self._idle += [array for name, array in self._kept.items() if name not in stage.kept]
        self._kept = {name: both[name] for name in stage.kept}

    def inputs(self, stage: Stage) -> Iterator[tuple[range, Rows]]:
        """Yield a cut's input, a few sequences at a time, with their numbers."""
        x = stage.cut.x
        for sequences, found in self.buffers(stage, (x,)):
            yield sequences, found[x]

    def buffers(
        self, stage: Stage, names: Sequence[Buffer]
    ) -> Iterator[tuple[range, dict[Buffer, Rows]]]:
        """Yield what is read at or behind a cut, a few sequences at a time, with their numbers."""
        kept = [name for name in names if name in self._kept]
        run = [name for name in names if name not in self._kept]
        pieces = self._pieces(stage.ops, run) if run else ((*s, {}) for s in self._slices())
        for sequences, rows, found in pieces:
            yield sequences, {**found, **{name: self._kept[name][rows] for name in kept}}

    def _pieces(
        self, ops: range, wanted: Sequence[Buffer], into: Mapping[Buffer, Rows] | None = None
    ) -> Iterator[tuple[range, slice, dict[Buffer, Rows]]]:
        for sequences, rows in self._slices():
            given = {name: array[rows] for name, array in self._kept.items()}
            lengths = self.calibration.lengths[sequences.start : sequences.stop]
            places = None if into is None else {name: into[name][rows] for name in wanted}
            found = self._run(ops, lengths, given, wanted, self._tokens[rows], into=places)
            yield sequences, rows, found

    def _slices(self) -> Iterator[tuple[range, slice]]:
        lengths, row = self.calibration.lengths, 0
        for piece in self.calibration.pieces(_PIECE_ROWS):
            count = sum(lengths[piece])
            yield range(piece.start, piece.stop), slice(row, row + count)
            row += count

    def _array(self, width: int) -> Rows:
        """Return memory for a buffer: what an earlier one had, whose pages are there already."""
        for number, array in enumerate(self._idle):
            if array.shape[1] == width:
                return self._idle.pop(number)
        return np.empty((len(self._tokens), width), np.float32)


def _stream(program: Program, cut: Cut) -> Buffer | None:
    """Return the residual stream that the outputs of a cut's layer are added to, if they are."""
    outs = [op.out for op in cut.layers]
    for op in program.ops:
        if isinstance(op, Add) and outs == [op.y]:
            return op.x
    return None


def _live(program: Program, index: int) -> tuple[Buffer, ...]:
    """Return what ops from an index on read of what ops before it wrote.

    Rope tables are left out: they follow from positions, and whoever runs ops makes them anew.
    """
    before = program.ops[:index]
    read = {name for op in program.ops[index:] for name in program.inputs(op)}
    return tuple(op.out for op in before if op.out in read and not isinstance(op, RopeTable))


def _width(program: Program, buffers: Sequence[Buffer]) -> int:
    return sum(program.widths[name] for name in buffers)
