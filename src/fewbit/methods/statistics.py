"""What calibration knows about the inputs of a linear layer, for solvers and transforms."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class InputStatistics:
    """Sums over `count` rows x of a layer's input; what masks exclude is not among them.

    Sums, not means, so that statistics of two sets of rows add up whatever their sizes.
    """

    count: int
    """Rows, that is tokens."""
    squares: NDArray[np.float64]
    """Sum of x^2, float64 [inputs]."""
    largest: NDArray[np.float32]
    """Largest |x|, float32 [inputs]."""
    absolute: NDArray[np.float64]
    """Sum of |x|, float64 [inputs]."""
    gram: NDArray[np.float32] | None = None
    """Sum of the outer products x x^T, float32 [inputs, inputs], both triangles; None where no
    method needs it."""
    drift: NDArray[np.float32] | None = None
    """Sum of the outer products d x^T, float32 [inputs, inputs], where the layer is to put out what
    the source's does with x + d; None where it is to put out what it does with x."""
    lag: NDArray[np.float32] | None = None
    """Sum of the outer products r x^T, float32 [outputs, inputs], where the layer is to put out r
    more, because what its outputs are added to lags behind the source's by that; else None."""
    remarks: tuple[str, ...] = ()
    """Sentences for the manifest on how they came about, such as that an expert was hardly
    reached."""
    reached: int | None = None
    """Tokens that reached the layer, where others' rows were added to theirs."""
    _derived: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        inputs = self.squares.shape
        assert len(inputs) == 1
        assert self.largest.shape == inputs
        assert self.absolute.shape == inputs
        assert self.gram is None or self.gram.shape == inputs * 2
        assert self.drift is None or self.drift.shape == inputs * 2
        assert self.lag is None or self.lag.shape[1:] == inputs

    @property
    def tokens(self) -> int:
        """Calibration tokens that reached the layer."""
        return self.count if self.reached is None else self.reached

    @property
    def inputs(self) -> int:
        """The width of the layer's input."""
        return int(self.squares.shape[0])

    def derived(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return what `make` made under this key: work that matrices with one input share.

        It lives as long as these statistics, whose sums must not be changed behind it.
        """
        if key not in self._derived:
            self._derived[key] = make()
        found: _T = self._derived[key]
        return found

    def scaled(self, factors: NDArray[np.floating]) -> InputStatistics:
        """Return the statistics of x / factors.

        Args:
            factors: [inputs], finite, none of them 0; where x is divided, the weight's columns are
                multiplied, so that the layer computes what it did.
        """
        inverse = 1.0 / factors.astype(np.float64)
        size = np.abs(inverse)
        single = inverse.astype(np.float32)
        return InputStatistics(
            count=self.count,
            squares=self.squares * inverse**2,
            largest=(self.largest * size).astype(np.float32),
            absolute=self.absolute * size,
            gram=None if self.gram is None else self.gram * single[:, None] * single[None, :],
            drift=None if self.drift is None else self.drift * single[:, None] * single[None, :],
            lag=None if self.lag is None else self.lag * single[None, :],
            remarks=self.remarks,
            reached=self.reached,
        )

    def plus(self, other: InputStatistics) -> InputStatistics:
        """Return the statistics of both sets of rows; matrices only where both have them."""
        return InputStatistics(
            count=self.count + other.count,
            squares=self.squares + other.squares,
            largest=np.maximum(self.largest, other.largest),
            absolute=self.absolute + other.absolute,
            gram=_sum(self.gram, other.gram),
            drift=_sum(self.drift, other.drift),
            lag=_sum(self.lag, other.lag),
            remarks=tuple(dict.fromkeys((*self.remarks, *other.remarks))),
        )

    def require_finite(self) -> None:
        """Raise where a sum is not finite.

        Raises:
            NumericalError: names the sum and the input column.
        """
        for name, values in (
            ("sum of squares", self.squares),
            ("largest magnitude", self.largest),
            ("sum of magnitudes", self.absolute),
            ("Gram matrix's diagonal", None if self.gram is None else self.gram.diagonal()),
            ("Gram matrix", None if self.gram is None else self.gram.sum(axis=1)),
            ("drift from the source", None if self.drift is None else self.drift.sum(axis=0)),
            ("lag behind the source", None if self.lag is None else self.lag.sum(axis=0)),
        ):
            if values is not None and not np.isfinite(values).all():
                column = int(np.argmin(np.isfinite(values)))
                raise NumericalError(
                    f"The {name} of the layer's inputs is {values[column]} at input {column}; "
                    "a value that is not finite reached this layer during calibration, so find "
                    "the first layer that has one, or choose a data-free method such as rtn or hqq."
                )


def _sum(
    one: NDArray[np.float32] | None, other: NDArray[np.float32] | None
) -> NDArray[np.float32] | None:
    return None if one is None or other is None else one + other
