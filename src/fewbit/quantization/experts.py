"""What the experts of a mixture read during calibration.

The gate and up of an expert read the rows that are routed to it, its down what these make of them.
Experts that few tokens reach, or none, are given a share of the statistics of all tokens, which is
what such an expert would see of a router that chose at random (`methods/shrinkage.py` says how much
and why). Of down that takes running the expert over tokens that never reached it: over some
thousands, evenly spread, not over all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.collect import Collector
from fewbit.errors import NumericalError
from fewbit.methods.shrinkage import shrunk
from fewbit.methods.statistics import InputStatistics
from fewbit.program import Buffer, GatedActivation, Linear, Mixture, Op, Program, Slot
from fewbit.runtime.mixture import route
from fewbit.runtime.native import Pool

Rows: TypeAlias = NDArray[np.float32]

_PRIOR_TOKENS = 4096
"""Tokens that an expert is run over for what its down would read of all of them: more than any
input has directions that count, and no more than a well-fed expert sees anyway."""


@contextlib.contextmanager
def named(slots: Sequence[Slot]) -> Iterator[None]:
    """Say in a NumericalError whose input it is about."""
    try:
        yield
    except NumericalError as error:
        raise NumericalError(f"The input of {', '.join(slots)}: {error}") from error


class RunExpert(Protocol):
    """Runs the gate, up and activation of an expert with the tensors that are bound now."""

    def __call__(self, op: Mixture, number: int, x: Rows) -> Rows:
        """Return float32 [rows, width] of x [rows, hidden]."""
        ...


@dataclass(frozen=True)
class Part:
    """The matrices of one expert that read the same rows: gate and up, or (`inner`) down."""

    mixture: Mixture
    number: int
    inner: bool

    @property
    def layers(self) -> tuple[Linear, ...]:
        """The matrices as linear layers, which the Program does not have them as."""
        expert, x = self.mixture.experts[self.number], self.buffer
        slots = (expert.down,) if self.inner else (expert.gate, expert.up)
        sites = [slot.removeprefix(f"layers.{self.mixture.layer}.") for slot in slots]
        return tuple(
            Linear(layer=self.mixture.layer, site=site, out=f"{slot}.out", x=x, weight=slot)
            for site, slot in zip(sites, slots, strict=True)
        )

    @property
    def buffer(self) -> Buffer:
        """A name for the rows; the Program has no such buffer."""
        stem = self.mixture.experts[self.number].down.removesuffix(".down.weight")
        return f"{stem}.activation" if self.inner else f"{stem}.input"


def parts(mixture: Mixture) -> tuple[Part, ...]:
    """Return the parts of every expert: what down reads follows from gate and up."""
    numbers = range(len(mixture.experts))
    return tuple(Part(mixture, n, inner) for n in numbers for inner in (False, True))


def inner_program(mixture: Mixture, number: int, inputs: int) -> Program:
    """Return the gate, up and activation of an expert as a Program over rows of its input."""
    expert = mixture.experts[number]
    ops: tuple[Op, ...] = (
        Linear(layer=0, site="gate", out="gate", x="x", weight=expert.gate),
        Linear(layer=0, site="up", out="up", x="x", weight=expert.up),
        GatedActivation(
            layer=0,
            site="activation",
            out="activation",
            gate="gate",
            up="up",
            activation=mixture.activation,
        ),
    )
    widths = {"x": inputs, **dict.fromkeys(("gate", "up", "activation"), mixture.width)}
    return Program(ops, widths, logits="", layers=1, vocabulary=1, context=1 << 30)


@dataclass(frozen=True)
class Tokens:
    """Calibration tokens in pieces of whole windows, and which of them count."""

    pieces: Sequence[tuple[range, slice]]
    """The numbers of some windows, and their rows among all."""
    masks: Sequence[NDArray[np.bool_]]
    """Per window."""

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Which of all rows count."""
        return np.concatenate(self.masks)

    def spread(self, most: int) -> NDArray[np.bool_]:
        """Return about so many of the rows that count, evenly spread, as a mask of all."""
        places = np.flatnonzero(self.counted)
        found = np.zeros_like(self.counted)
        found[places[:: max(1, len(places) // most)]] = True
        return found


@dataclass(frozen=True)
class MixtureInput:
    """The input of a mixture for all calibration tokens, and who is routed where."""

    mixture: Mixture
    x: Rows
    router: Rows
    tokens: Tokens
    run: RunExpert
    pool: Pool
    gram: bool

    @cached_property
    def chosen(self) -> NDArray[np.intp]:
        """The experts of every token, [tokens, used]."""
        return route(self.router, self.mixture)[0]

    @cached_property
    def shared(self) -> InputStatistics:
        """Of all tokens' rows."""
        return self.collected(Part(self.mixture, 0, inner=False), self.tokens.counted)

    def reached(self, number: int) -> NDArray[np.bool_]:
        """Return which rows count and are routed to an expert."""
        routed: NDArray[np.bool_] = (self.chosen == number).any(axis=1)
        return routed & self.tokens.counted

    def collected(self, part: Part, selected: NDArray[np.bool_]) -> InputStatistics:
        """Return the statistics of what a part reads of the selected rows."""
        width = self.mixture.width if part.inner else self.x.shape[1]
        collector = Collector(width, self.pool, gram=self.gram)
        for sequences, rows in self.tokens.pieces:
            taken = selected[rows]
            if taken.any():
                ends = np.cumsum([len(self.tokens.masks[number]) for number in sequences])
                masks = np.split(taken, ends[:-1])
                collector.add(self._read(part, self.x[rows], taken), masks, sequences.start)
        return collector.statistics()

    def _read(self, part: Part, x: Rows, taken: NDArray[np.bool_]) -> Rows:
        """Return what a part reads, float32 [tokens, width]; of down only where `taken`."""
        if not part.inner:
            return x
        found = np.zeros((len(x), self.mixture.width), np.float32)
        found[taken] = self.run(self.mixture, part.number, np.ascontiguousarray(x[taken]))
        return found


@dataclass(frozen=True)
class ExpertInput:
    """The input of a part of an expert, looked at when asked; a `walk.CutInput`."""

    mixture: MixtureInput
    part: Part

    def __call__(self) -> InputStatistics:
        """Return the statistics of the rows that reach the expert, blended with all tokens'.

        Raises:
            NumericalError: a value is not finite; says which matrices read it, window and token.
        """
        with named([op.weight for op in self.part.layers]):
            shared = self._shared(self.mixture.tokens)
        return shrunk(self.own(), shared)

    def own(self) -> InputStatistics:
        """Return the statistics of the rows that reach the expert alone; raises as a call."""
        with named([op.weight for op in self.part.layers]):
            return self.mixture.collected(self.part, self.mixture.reached(self.part.number))

    def _shared(self, tokens: Tokens) -> InputStatistics:
        if not self.part.inner:
            return self.mixture.shared
        return self.mixture.collected(self.part, tokens.spread(_PRIOR_TOKENS))

    def sample(self, rows: int) -> Rows:
        """Return about so many rows that reach the expert; where there are fewer, others too."""
        found = self.mixture.reached(self.part.number)
        places = np.flatnonzero(found)
        if len(places) >= rows:
            selected = places[:: len(places) // rows]
        else:
            others = np.flatnonzero(self.mixture.tokens.spread(rows - len(places)))
            selected = np.union1d(places, others)
        x = np.ascontiguousarray(self.mixture.x[selected])
        if not self.part.inner:
            return x
        return self.mixture.run(self.mixture.mixture, self.part.number, x)
