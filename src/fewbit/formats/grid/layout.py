"""What each format's grid looks like: its levels, its groups and how their scales are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from fewbit.errors import UnsupportedError
from fewbit.formats.codebooks import E2M1_DOUBLED, IQ4_VALUES
from fewbit.formats.spec import Granularity, NumberFormat, QuantSpec, ScaleType


class Offset(Enum):
    """What is added to scale * level."""

    NONE = "none"
    VALUE = "value"
    """A float16 of its own for each group (Q4_1, Q5_1)."""
    STEPS = "steps"
    """A float16 of the block times an integer of the group, subtracted (Q2_K, Q4_K, Q5_K)."""
    ZERO = "zero"
    """-scale * z with an integer zero point z of the group (affine, asymmetric)."""


class ScaleStorage(Enum):
    """The type a first-level scale is stored in."""

    F16 = "f16"
    F32 = "f32"
    E8M0 = "e8m0"
    """A power of two, 2^-128 to 2^127, in one byte."""


class Ties(Enum):
    """Where a value halfway between two levels goes: as the format's own encoder has it."""

    EVEN = "even"
    """To the even code."""
    UP = "up"
    """To the higher level, in units of the scale."""
    AWAY = "away"
    """Away from zero."""
    INWARD = "inward"
    """Towards zero."""


@dataclass(frozen=True)
class GridLayout:
    """The static facts of a format for matrices of a given width."""

    levels: tuple[float, ...]
    """The value of each code in units of the scale, ascending."""
    group: int
    """Consecutive inputs that share the effective scale and offset."""
    block: int
    """Inputs of one first-level scale, a multiple of `group`; equal to it with one level."""
    scale_type: ScaleStorage
    steps: tuple[int, int] | None = None
    """Smallest and largest integer second-level scale; None with one level."""
    offset: Offset = Offset.NONE
    offset_steps: tuple[int, int] | None = None
    """The range of the integers of `STEPS` and `ZERO`."""
    ties: Ties = Ties.EVEN

    @property
    def integer(self) -> bool:
        """Whether the levels are consecutive integers."""
        return len(self.levels) == round(self.levels[-1] - self.levels[0]) + 1


def has_grid(form: NumberFormat) -> bool:
    """Return whether a format has a grid of scaled levels for every row; see `layout`."""
    if isinstance(form, QuantSpec):
        return form.rows_independent and not form.ordered
    return form.name in _BLOCKS


def layout(form: NumberFormat, columns: int) -> GridLayout:
    """Return the grid of a format for rows of `columns` inputs.

    Raises:
        UnsupportedError: the format has no grid of scaled levels per row (floats, fp8, scales per
            tensor or channel, an order of columns, GGUF types without a decoder).
        UsageError: the columns do not divide into the format's groups or blocks.
    """
    if has_grid(form):
        if isinstance(form, QuantSpec):
            return _affine(form, columns)
        form.row_bytes(columns)
        return _BLOCKS[form.name]
    raise UnsupportedError(
        f"{form.name} has no grid of levels with scales per row or group; those that have are "
        f"int<2..8>-<g32|row>[-asym][-f32] and {', '.join(_BLOCKS)}."
    )


def _affine(form: QuantSpec, columns: int) -> GridLayout:
    groups = form.scale_shape((1, columns))[1]
    group = columns // groups if form.granularity is Granularity.GROUP else columns
    return GridLayout(
        levels=_integers(form.low, form.high),
        group=group,
        block=group,
        scale_type=ScaleStorage.F16 if form.scale_type is ScaleType.F16 else ScaleStorage.F32,
        offset=Offset.NONE if form.symmetric else Offset.ZERO,
        offset_steps=None if form.symmetric else (form.low, form.high),
    )


def _integers(low: int, high: int) -> tuple[float, ...]:
    return tuple(float(level) for level in range(low, high + 1))


def _single(levels: tuple[float, ...], ties: Ties, offset: Offset = Offset.NONE) -> GridLayout:
    return GridLayout(levels, 32, 32, ScaleStorage.F16, offset=offset, ties=ties)


def _double(levels: tuple[float, ...], group: int, steps: tuple[int, int]) -> GridLayout:
    return GridLayout(levels, group, 256, ScaleStorage.F16, steps)


def _with_minima(bits: int, group: int, steps: tuple[int, int]) -> GridLayout:
    levels = _integers(0, (1 << bits) - 1)
    return GridLayout(levels, group, 256, ScaleStorage.F16, steps, Offset.STEPS, steps)


_IQ4 = tuple(float(value) for value in IQ4_VALUES)
_E2M1 = tuple(sorted(float(value) for value in E2M1_DOUBLED))

_BLOCKS: Mapping[str, GridLayout] = MappingProxyType(
    {
        "q4_0": _single(_integers(-8, 7), Ties.UP),
        "q4_1": _single(_integers(0, 15), Ties.UP, Offset.VALUE),
        "q5_0": _single(_integers(-16, 15), Ties.UP),
        "q5_1": _single(_integers(0, 31), Ties.UP, Offset.VALUE),
        "q8_0": _single(_integers(-128, 127), Ties.AWAY),
        "q2_k": _with_minima(2, 16, (0, 15)),
        "q3_k": _double(_integers(-4, 3), 16, (-32, 31)),
        "q4_k": _with_minima(4, 32, (0, 63)),
        "q5_k": _with_minima(5, 32, (0, 63)),
        "q6_k": _double(_integers(-32, 31), 16, (-128, 127)),
        "iq4_nl": _single(_IQ4, Ties.UP),
        "iq4_xs": GridLayout(_IQ4, 32, 256, ScaleStorage.F16, (-32, 31), ties=Ties.UP),
        "mxfp4": GridLayout(_E2M1, 32, 32, ScaleStorage.E8M0, ties=Ties.INWARD),
    }
)
