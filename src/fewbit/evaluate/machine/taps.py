"""What passes through a model's layers, looked at as it passes.

Buffers of the Program are tapped: the inputs of matrices, what attention stores, the residual
stream, and of mixtures the router's logits and the output. A tap changes no bit of what is
computed; it only keeps ops apart that would run as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UnsupportedError
from fewbit.formats.activations import ACTIVATION_RUN
from fewbit.model.pieces import Piece, step_of
from fewbit.model.runner import Runner
from fewbit.program import Add, Attention, Buffer, CacheType, Linear, Mixture, Op, Program, slots_of
from fewbit.records.kernels import KernelRecord
from fewbit.runtime.executor import Tap
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.step import PAGE

Floats: TypeAlias = NDArray[np.float32]

STEP_ROWS = 64
"""Rows of a step: the taps of all layers take their bytes together."""

_SAMPLE = 16384
"""Values of a step of which the median is taken, spread over it."""
_CODES = np.float32(127)
_HALF = 65504.0
"""The largest fp16 number."""


@dataclass(frozen=True)
class Watch:
    """A buffer that is looked at, and what is to be known of it."""

    layer: int
    site: str
    """Of the op that writes it."""
    buffer: Buffer
    role: str
    """`input`, `key`, `value`, `residual`, `router` or `experts`."""
    activations: str = "f32"
    """How those that read it round it, as a `KernelRecord` names it."""
    input_scale: float | None = None
    """The smallest static scale among its readers."""
    limit: float = np.inf
    """The largest magnitude that what stores it can hold."""

    @property
    def tap(self) -> Tap:
        """What the executor calls it."""
        return self.layer, self.site


def watches(program: Program, kernels: Mapping[str, KernelRecord]) -> tuple[Watch, ...]:
    """Return what is looked at, in the order in which it is written.

    Args:
        program: the model.
        kernels: of its matrices, by slot.
    """
    writers = {op.out: (i, op) for i, op in enumerate(program.ops)}
    roles: dict[Buffer, str] = {}
    readers: dict[Buffer, list[KernelRecord]] = {}
    for op in program.ops:
        for buffer, role in _roles(op):
            roles.setdefault(buffer, role)
        if isinstance(op, Linear | Mixture):
            read = [kernels[slot] for slot in slots_of(op) if slot in kernels]
            readers.setdefault(op.x, []).extend(read)
    ordered = sorted(roles, key=lambda buffer: writers[buffer][0])
    limit = _limit(program.cache_type)
    return tuple(
        _watch(writers[b][1], roles[b], _inner(program, b, readers.get(b, [])), limit)
        for b in ordered
    )


def _inner(program: Program, buffer: Buffer, read: list[KernelRecord]) -> list[KernelRecord]:
    """Leave out experts' down matrices, which read no buffer of the Program."""
    downs = {
        expert.down
        for op in program.ops
        if isinstance(op, Mixture) and op.x == buffer
        for expert in op.experts
    }
    return [kernel for kernel in read if kernel.slot not in downs]


def _roles(op: Op) -> Iterator[tuple[Buffer, str]]:
    match op:
        case Linear():
            yield op.x, "input"
        case Attention():
            yield op.k, "key"
            yield op.v, "value"
        case Mixture():
            yield op.x, "input"
            yield op.router, "router"
            yield op.out, "experts"
        case Add():
            yield op.out, "residual"


def _watch(writer: Op, role: str, read: Iterable[KernelRecord], limit: float) -> Watch:
    integer = [kernel for kernel in read if kernel.activations.startswith("int8")]
    scales = [k.input_scale for k in integer if k.input_scale is not None]
    return Watch(
        layer=writer.layer,
        site=writer.site,
        buffer=writer.out,
        role=role,
        activations=integer[0].activations if integer else "f32",
        input_scale=min(scales, default=None),
        limit=limit if role in ("key", "value") else np.inf,
    )


@dataclass
class Tally:
    """What was seen of one watched buffer on one arm."""

    values: int = 0
    not_finite: int = 0
    first: str = ""
    """Where the first value was that was not finite, in words."""
    largest: float = 0.0
    medians: list[float] = field(default_factory=list)
    """Of the magnitudes of each step."""
    clipped: int = 0
    zeroed: int = 0
    overflow: int = 0

    @property
    def outlier(self) -> float:
        """The largest magnitude over the median of all steps' medians; 0 where that is 0."""
        usual = median(self.medians) if self.medians else 0.0
        return self.largest / usual if usual > 0 else 0.0

    def share(self, count: int) -> float:
        """Return a count over all values."""
        return count / self.values if self.values else 0.0

    def add(self, x: Floats, watch: Watch, where: str, position: int) -> None:
        """Look at the rows of a step, float32 [rows, width]."""
        if not x.size:
            return
        self.values += x.size
        magnitude = np.abs(x)
        finite = np.isfinite(magnitude)
        if not finite.all():
            self._note(finite, where, position)
            magnitude = np.where(finite, magnitude, np.float32(0))
        self.largest = max(self.largest, float(magnitude.max()))
        spread = magnitude.reshape(-1)[:: max(1, x.size // _SAMPLE)]
        self.medians.append(float(np.median(spread)))
        self.clipped += _clipped(magnitude, watch)
        self.zeroed += _zeroed(magnitude, watch)
        self.overflow += int((magnitude > watch.limit).sum())

    def _note(self, finite: NDArray[np.bool_], where: str, position: int) -> None:
        self.not_finite += int((~finite).sum())
        if not self.first:
            row = int(np.flatnonzero(~finite.all(axis=1))[0])
            self.first = f"{where}, position {position + row}"


def _clipped(magnitude: Floats, watch: Watch) -> int:
    """Count the values that round beyond the last code of a static scale."""
    if watch.input_scale is None:
        return 0
    return int((magnitude > (_CODES + np.float32(0.5)) * np.float32(watch.input_scale)).sum())


def _zeroed(magnitude: Floats, watch: Watch) -> int:
    """Count the values that are not zero and whose int8 code is."""
    match watch.activations:
        case "int8-g32":
            runs = magnitude.reshape(len(magnitude), -1, ACTIVATION_RUN)
            half_steps = runs.max(axis=-1, keepdims=True) / (2 * _CODES)
            return int(((runs < half_steps) & (runs > 0)).sum())
        case "int8-token":
            half_steps = magnitude.max(axis=-1, keepdims=True) / (2 * _CODES)
        case "int8-static" if watch.input_scale is not None:
            half_steps = np.full((1, 1), watch.input_scale / 2, np.float32)
        case _:
            return 0
    return int(((magnitude < half_steps) & (magnitude > 0)).sum())


def _limit(cache_type: CacheType) -> float:
    """Return the largest magnitude that a store of keys and values holds."""
    match cache_type:
        case CacheType.F16:
            return _HALF
        case CacheType.INT8:
            return _HALF * float(_CODES)
        case CacheType.INT4:
            return _HALF * 8
        case _:
            return np.inf


Seen: TypeAlias = tuple[Watch, Tally]
"""A watched buffer, and what was seen of it."""


class Tapped:
    """An arm whose watched buffers can be seen; it shares weights and threads with its runner."""

    def __init__(self, runner: Runner, tokens: int) -> None:
        """Tap a runner.

        Args:
            runner: on the native executor.
            tokens: of the longest window.

        Raises:
            UnsupportedError: it runs on another executor.
        """
        native = runner.executor
        if not isinstance(native, NativeExecutor):
            raise UnsupportedError(
                "Numerics are looked at on the native executor; leave the axis out, or run with "
                "--executor native."
            )
        self.program = runner.program
        self.watched = watches(runner.program, runner.binding.kernels)
        self.tallies = tuple(Tally() for _ in self.watched)
        self._pages = np.arange(-(-tokens // PAGE), dtype=np.int32)
        self._executor = NativeExecutor(
            replace(runner.binding, packed=native.matrices),
            pages=len(self._pages),
            threads=native.pool,
            isa=native.isa,
            taps=frozenset(watch.tap for watch in self.watched),
        )

    def seen(self) -> Iterator[Seen]:
        """Yield every watched buffer with what was seen of it so far."""
        yield from zip(self.watched, self.tallies, strict=True)

    def run(
        self, tokens: NDArray[np.int32], position: int, where: str, *, all_logits: bool
    ) -> tuple[Floats, dict[Buffer, Floats]]:
        """Run some rows of a window behind those run before, and look at every watched buffer.

        Args:
            tokens: int32 [rows], at most `STEP_ROWS`.
            position: of the first in the window.
            where: the window, in words.
            all_logits: whether those of all rows are wanted, or of the last.

        Returns:
            Logits of the wanted rows, and what the routers and mixtures wrote, by buffer.
        """
        rows = np.arange(len(tokens), dtype=np.int32)
        piece = Piece(tokens, position, self._pages, rows if all_logits else rows[-1:])
        logits = self._executor.step(step_of([piece])).copy()
        kept = {}
        for watch, tally in self.seen():
            x = self._executor.tap(*watch.tap)
            tally.add(x, watch, where, position)
            if watch.role in ("router", "experts"):
                kept[watch.buffer] = x
        return logits, kept
