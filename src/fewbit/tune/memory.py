"""The memory that tuning takes at its peak, counted before it begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fewbit.errors import UnsupportedError, UsageError
from fewbit.formats.grid import layout
from fewbit.formats.registry import encoded_bytes
from fewbit.formats.spec import QuantTensor
from fewbit.program import Embed, Program, Slot
from fewbit.records.figures import size
from fewbit.records.tuning import TuneMemory
from fewbit.runtime.memory import Available
from fewbit.tune.settings import Precision, Tuned, TuneSettings

CHUNK = 1 << 25
"""Logits of one model that exist at once."""

_LATENT_BYTES = 4 * 4
"""A latent, its gradient and two moments, float32."""
_CODE_BYTES = 2 + 2
"""A code's residual and first moment, beside its gradient."""
_KEPT = 2
"""Buffers kept for the backward pass over those the Program has: inputs rounded to bf16, heads."""


@dataclass(frozen=True)
class _Sizes:
    """Numbers of elements."""

    coded: int
    """Weights on a grid."""
    groups: int
    """Their scales and offsets, of both levels."""
    largest: int
    """Weights of the largest matrix of a layer."""
    in_layers: int
    """Weights of all layers' matrices."""
    table: int
    """Weights of the head."""


def plan(
    program: Program,
    start: Mapping[Slot, QuantTensor],
    settings: TuneSettings,
    positions: int,
    available: Available,
) -> tuple[TuneMemory, bool]:
    """Return the memory that is expected and whether layers are computed again.

    Args:
        program: the decoder.
        start: the tensor of every slot.
        settings: what is trained; `recompute` None leaves the choice to the memory there is.
        positions: tokens in a batch, padding included.
        available: what may be taken.

    Raises:
        UsageError: it does not fit; the message has the numbers.
    """
    kept = _memory(program, start, settings, positions, recompute=False)
    again = _memory(program, start, settings, positions, recompute=True)
    limit = available.bytes
    fits = limit is None or kept.needed <= limit
    recompute = settings.recompute if settings.recompute is not None else not fits
    found = again if recompute else kept
    found = TuneMemory(
        codes=found.codes,
        state=found.state,
        layers=found.layers,
        head=found.head,
        available=limit,
        limit=available.limit,
    )
    if limit is not None and found.needed > limit:
        raise UsageError(
            f"Tuning {settings.what.value} needs {size(found.needed)} of memory (codes "
            f"{size(found.codes)}, trained values {size(found.state)}, layers "
            f"{size(found.layers)}, head {size(found.head)}) and {size(limit)} is "
            f"{available.limit}; {_advice(settings, recompute=recompute)}."
        )
    return found, recompute


def _memory(
    program: Program,
    start: Mapping[Slot, QuantTensor],
    settings: TuneSettings,
    positions: int,
    *,
    recompute: bool,
) -> TuneMemory:
    wide = 2 if settings.precision is Precision.BF16 else 4
    sizes = _sizes(program, start)
    stored = sum(encoded_bytes(tensor.spec, tensor.shape) for tensor in start.values())
    trained = _LATENT_BYTES * sizes.groups + stored
    if settings.what is not Tuned.SCALES:
        origin = 1 if settings.what is Tuned.ROUNDING else 0
        trained += (_CODE_BYTES + wide + origin) * sizes.coded
    everything, one_layer, between = _activations(program, positions, wide)
    matrices = wide * (sizes.largest * 4 if recompute else sizes.in_layers)
    layers = (between + one_layer if recompute else everything) + matrices
    chunk = CHUNK * (2 * wide)
    return TuneMemory(
        codes=sizes.coded + stored,
        state=trained,
        layers=layers,
        head=3 * wide * sizes.table + chunk,
        available=None,
        limit="",
    )


def _sizes(program: Program, start: Mapping[Slot, QuantTensor]) -> _Sizes:
    counts = _Sizes(coded=0, groups=0, largest=0, in_layers=0, table=0)
    for slot, tensor in start.items():
        rows, columns = tensor.shape
        if slot.startswith("layers."):
            largest = max(counts.largest, rows * columns)
            counts = replace(counts, in_layers=counts.in_layers + rows * columns, largest=largest)
        else:
            counts = replace(counts, table=max(counts.table, rows * columns))
        groups = _groups(tensor)
        if groups:
            counts = replace(
                counts, coded=counts.coded + rows * columns, groups=counts.groups + groups
            )
        else:
            counts = replace(counts, groups=counts.groups + (columns if rows == 1 else 0))
    return counts


def _groups(tensor: QuantTensor) -> int:
    """Return how many scales and offsets a matrix has, of both levels; 0 where it has no grid."""
    try:
        form = layout(tensor.spec, tensor.shape[1])
    except UnsupportedError:
        return 0
    rows, columns = tensor.shape
    first = columns // form.block * (1 if form.offset_steps is None or form.steps is None else 2)
    second = columns // form.group * ((form.steps is not None) + (form.offset_steps is not None))
    return rows * (first + second)


def _activations(program: Program, positions: int, wide: int) -> tuple[int, int, int]:
    """Return the bytes of all layers' buffers, of one layer's, and of what lies between layers."""
    widths: Counter[int] = Counter()
    for op in program.ops:
        if op.out != program.logits:
            widths[op.layer] += program.widths[op.out]
    layers = [width for layer, width in widths.items() if layer >= 0]
    hidden = next(program.widths[op.out] for op in program.ops if isinstance(op, Embed))
    per_layer = max(layers, default=0) * positions * wide * _KEPT
    between = 4 * hidden * positions * (len(layers) + 2)
    return sum(layers) * positions * wide * _KEPT + between, per_layer, between


def _advice(settings: TuneSettings, *, recompute: bool) -> str:
    ways = [] if recompute else ["let layers be computed again (recompute)"]
    ways += ["take fewer windows a step (batch)"] if settings.batch > 1 else ["shorten the windows"]
    ways += [] if settings.what is Tuned.SCALES else ["tune scales only"]
    return " or ".join(ways)
