"""Where a Program lets channels be rescaled or rotated without changing what it computes.

Between two ops with nothing but products in between, a channel may be divided by a factor on one
side and its consumers' columns multiplied by it on the other. A decoder layer has four such places:
a norm's weight and the matrices that read it (twice), the rows of v and the columns of o (attention
mixes values of one channel only), the rows of up and the columns of down (a gate multiplies each
channel alone). They are found in the Program itself, so a family brings its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from fewbit.model.config import ModelConfig
from fewbit.model.decoder import build_program, slot_shapes
from fewbit.program import (
    OUTSIDE,
    Attention,
    Buffer,
    Expert,
    GatedActivation,
    Linear,
    Mixture,
    Op,
    Program,
    RmsNorm,
    Slot,
    slots_of,
)


class SiteKind(Enum):
    """What produces the channels of a site."""

    NORM = "norm"
    """A norm's weight; the consumers are the matrices that read the norm's output."""
    VALUES = "values"
    """The rows of v; the consumer is o."""
    UP = "up"
    """The rows of up; the consumer is down."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Channels that may be rescaled: x -> x / factors where produced, columns * factors after."""

    kind: SiteKind
    layer: int
    buffer: Buffer
    """What the consumers read, [rows, inputs]; inside an expert, a name of its own."""
    producers: tuple[Slot, ...]
    """The norm's weight; or the matrix whose rows, and the bias whose elements, are channels."""
    consumers: tuple[Slot, ...]
    """Matrices whose columns are the channels."""
    width: int
    """Number of channels, that is of factors."""
    offset: float = 0.0
    """What the norm adds to its weight (Gemma); 0 for other producers."""
    run: int = 1
    """Consecutive channels that are repeated together: a head's elements."""
    share: int = 1
    """How often each run is repeated in the consumers' input: query heads per value head."""

    def spread(self, channels: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return [width] values for the channels as [width * share] for the consumers' inputs.

        Query head h reads value head h // share, so each run is repeated at once.
        """
        runs = channels.reshape(-1, 1, self.run)
        return np.broadcast_to(runs, (len(runs), self.share, self.run)).reshape(-1)

    def gathered(self, inputs: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the repetitions of each channel among [..., width * share] inputs.

        The shape is [..., share, width]; the order of runs is undone.
        """
        lead = inputs.shape[:-1]
        runs = inputs.reshape(*lead, self.width // self.run, self.share, self.run)
        return np.moveaxis(runs, -2, -3).reshape(*lead, self.share, self.width)


def rescale_sites(config: ModelConfig) -> tuple[Site, ...]:
    """Return every site inside the decoder layers of a model, in the order of its Program.

    A site is left out where a slot of it serves another op as well, or where something else than a
    matrix reads the channels.
    """
    program = build_program(config)
    graph = _Graph(program, slot_shapes(config))
    found = (site for op in program.ops if op.layer != OUTSIDE for site in graph.sites(op))
    return tuple(site for site in found if graph.is_sound(site))


def columns_read(op: Op, buffer: Buffer) -> tuple[Slot, ...]:
    """Return the matrices whose columns meet a buffer that `op` reads; none where it has none."""
    if isinstance(op, Linear):
        return (op.weight,)
    if isinstance(op, Mixture) and buffer == op.x:
        return tuple(slot for expert in op.experts for slot in (expert.gate, expert.up))
    return ()


class _Graph:
    """Who writes a buffer, who reads it, and how many ops use a slot."""

    def __init__(self, program: Program, shapes: Mapping[Slot, tuple[int, int]]) -> None:
        self._shapes = shapes
        self._widths = program.widths
        self._writer = {op.out: op for op in program.ops}
        self._readers: dict[Buffer, list[Op]] = {op.out: [] for op in program.ops}
        self._uses: Counter[Slot] = Counter()
        for op in program.ops:
            for buffer in program.inputs(op):
                self._readers[buffer].append(op)
            self._uses.update(slots_of(op))

    def sites(self, op: Op) -> list[Site]:
        """Return the sites whose consumers' input `op` writes, or inside `op`."""
        match op:
            case RmsNorm() if op.width == self._widths[op.out]:  # heads' norms precede rope
                site = self._site(op, SiteKind.NORM, (op.weight,), op.width)
                return [replace(site, offset=op.offset)]
            case Attention():
                site = self._site(op, SiteKind.VALUES, self._rows(op.v), self._widths[op.v])
                return [replace(site, run=op.head_dim, share=op.heads // op.kv_heads)]
            case GatedActivation():
                return [self._site(op, SiteKind.UP, self._rows(op.up), self._widths[op.up])]
            case Mixture():
                return [self._expert(op, expert) for expert in op.experts]
        return []

    def is_sound(self, site: Site) -> bool:
        """Return whether both sides are there and serve this site alone."""
        slots = (*site.producers, *site.consumers)
        return bool(site.producers and site.consumers) and all(self._uses[s] == 1 for s in slots)

    def _site(self, op: Op, kind: SiteKind, producers: tuple[Slot, ...], width: int) -> Site:
        consumers = self._columns(op.out)
        return Site(
            kind=kind,
            layer=op.layer,
            buffer=op.out,
            producers=producers,
            consumers=consumers,
            width=width,
        )

    def _rows(self, buffer: Buffer) -> tuple[Slot, ...]:
        """Return weight and bias of the linear that alone writes for one reader, else nothing."""
        writer = self._writer[buffer]
        if not isinstance(writer, Linear) or len(self._readers[buffer]) != 1:
            return ()
        return slots_of(writer)

    def _columns(self, buffer: Buffer) -> tuple[Slot, ...]:
        """Return the matrices that read a buffer; nothing where another kind of op reads it."""
        found = [columns_read(op, buffer) for op in self._readers[buffer]]
        return tuple(slot for slots in found for slot in slots) if all(found) else ()

    def _expert(self, op: Mixture, expert: Expert) -> Site:
        """Return the site inside an expert; its buffer is not one of the Program's."""
        return Site(
            kind=SiteKind.UP,
            layer=op.layer,
            buffer=f"{expert.down.removesuffix('.down.weight')}.activation",
            producers=(expert.up,),
            consumers=(expert.down,),
            width=self._shapes[expert.down][1],
        )
