"""The solvers by the name that recipes use, and what each has to know about a layer's inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.grid import has_grid
from fewbit.formats.registry import ENCODABLE, is_integer
from fewbit.formats.spec import BlockSpec, NumberFormat, QuantSpec
from fewbit.methods.clip import search_range
from fewbit.methods.gptq import gptq, gptq_refined
from fewbit.methods.hqq import half_quadratic
from fewbit.methods.rtn import round_to_nearest
from fewbit.methods.scale_search import search_scales, search_scales_plainly
from fewbit.methods.solution import Solution
from fewbit.methods.statistics import InputStatistics

Solver: TypeAlias = Callable[
    [NDArray[np.float32], InputStatistics | None, NumberFormat],
    Solution,
]
"""A weight, float32 [outputs, inputs], the statistics of its inputs, and a format -> the weight in
that format. Rows do not depend on each other (unless the format makes them), so a solver gives the
same codes for a piece of the rows."""


class Need(IntEnum):
    """What a solver has to know about a layer's inputs; each includes the ones before."""

    NOTHING = 0
    """The weights alone: `statistics` may be None."""
    DIAGONAL = 1
    """`squares`, `largest` and `absolute`; an importance matrix will do."""
    GRAM = 2
    """`gram` too, so calibration text is run through the model."""


def _is_encodable(form: NumberFormat) -> bool:
    return not isinstance(form, BlockSpec) or form.name in ENCODABLE


@dataclass(frozen=True)
class Method:
    """A solver, its need, and the formats that it can make."""

    solve: Solver
    needs: Need = Need.NOTHING
    makes: Callable[[NumberFormat], bool] = _is_encodable
    without_inputs: str = "mse"
    """The method for a matrix that has no inputs (a table whose rows are only looked up), where
    this one needs them: least squares is right there, since each row is an output as it is."""


def _is_rounded_or_on_a_grid(form: NumberFormat) -> bool:
    """Return whether scales can be searched for, or there are none to search for."""
    return has_grid(form) or (not is_integer(form) and _is_encodable(form))


def greatest_need(methods: Iterable[str]) -> Need:
    """Return what the most demanding of some methods has to know."""
    return max((METHODS[method].needs for method in methods), default=Need.NOTHING)


def _nearest(
    weight: NDArray[np.float32], statistics: InputStatistics | None, form: NumberFormat
) -> Solution:
    return Solution(round_to_nearest(weight, form))


def _least_squares(
    weight: NDArray[np.float32], statistics: InputStatistics | None, form: NumberFormat
) -> Solution:
    if isinstance(form, QuantSpec):
        return Solution(search_range(weight, form))
    plain = search_scales_plainly if is_integer(form) else round_to_nearest
    return Solution(plain(weight, form))


def _half_quadratic(
    weight: NDArray[np.float32], statistics: InputStatistics | None, form: NumberFormat
) -> Solution:
    tensor = half_quadratic(weight, form) if is_integer(form) else round_to_nearest(weight, form)
    return Solution(tensor)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "rtn": Method(_nearest),
        "mse": Method(_least_squares),
        "hqq": Method(_half_quadratic, makes=_is_rounded_or_on_a_grid),
        "imatrix": Method(search_scales, Need.DIAGONAL, _is_rounded_or_on_a_grid),
        "gptq": Method(gptq, Need.GRAM, has_grid),
        "gptq-refined": Method(gptq_refined, Need.GRAM, has_grid),
    }
)
"""`rtn`: round to nearest over the whole range; `mse`: over the range of least squared error;
`hqq`: over the scales of least |error|^0.7; `imatrix`: of least squared error weighted by how large
inputs are; `gptq`: column by column, each making up for the errors of those before it;
`gptq-refined`: GPTQ, then codes by coordinate descent and scales in closed form (the best)."""
