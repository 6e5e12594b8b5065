"""What searches for channel factors share: the matrices behind a site, and factors made sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.formats import affine
from fewbit.formats.registry import decode, encode
from fewbit.formats.spec import NumberFormat, QuantSpec
from fewbit.methods.statistics import InputStatistics

Rounding: TypeAlias = Callable[[NDArray[np.float32], NumberFormat], NDArray[np.float32]]
"""A weight, float32 [outputs, inputs], and a format -> the weight rounded and decoded."""

LARGEST_FACTOR = 256.0
"""Factors lie within [1 / 256, 256] around their geometric mean. Beyond, a channel's old and new
magnitude differ by more than the 8 bits that int8 codes resolve, and fp16 scales come near the ends
of their range."""


@dataclass(frozen=True, eq=False)
class Consumer:
    """A matrix behind a site, and the format it is going to have."""

    weight: NDArray[np.float32]
    """[outputs, inputs]."""
    form: NumberFormat | None
    """None where the matrix is kept: rescaling costs it nothing and gains it nothing."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Factors that a search found, and what its objective was without and with them."""

    factors: NDArray[np.float32]
    """[channels], positive: inputs are divided by them, columns multiplied."""
    detail: str
    """The exponents or the rule, in a few words."""
    before: float
    after: float

    @property
    def changes(self) -> bool:
        """Whether any factor is not 1."""
        return bool((self.factors != 1).any())


def unscaled(channels: int, error: float) -> Scaling:
    """Return the scaling that changes nothing."""
    return Scaling(np.ones(channels, np.float32), "none", error, error)


def sound_factors(logarithms: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return exp(logarithms), [channels], with geometric mean 1 and within the bounds.

    Only ratios between channels matter: a common factor scales every group alike. They stay plain
    float32 numbers; powers of two would make the fold exact, but steps that coarse waste most of
    what a search gains, and one rounding of a weight that is quantized next costs nothing.
    """
    bound = np.log(LARGEST_FACTOR)
    centred = np.clip(logarithms - logarithms.mean(), -bound, bound)
    factors: NDArray[np.float32] = np.exp(centred).astype(np.float32)
    return factors


def channel_means(
    values: NDArray[np.floating], channel_of: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Return each channel's mean over the inputs that repeat it; channel_of: [inputs]."""
    sums = np.bincount(channel_of, weights=values)
    means: NDArray[np.float64] = sums / np.bincount(channel_of)
    return means


def channel_largest(
    values: NDArray[np.floating], channel_of: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Return each channel's largest value among the inputs that repeat it; values >= 0."""
    largest = np.zeros(int(channel_of.max()) + 1, np.float64)
    np.maximum.at(largest, channel_of, values)
    return largest


def floored_logarithms(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(values) of magnitudes >= 0, with a floor of 1e-4 of their mean.

    A channel that calibration never activated would otherwise have a factor of 0 (quantize case 10
    of columns without statistics). All zeros give zeros.
    """
    mean = values.mean()
    return np.log(np.maximum(values, 1e-4 * mean)) if mean > 0 else np.zeros_like(values)


def rounded(weight: NDArray[np.float32], form: NumberFormat) -> NDArray[np.float32]:
    """Return a weight rounded to nearest in a format and decoded."""
    if isinstance(form, QuantSpec):  # the same values without packing codes and unpacking them
        return affine.round_trip(weight, form, *affine.fit(weight, form))
    return decode(encode(weight, form))


def output_error(difference: NDArray[np.float32], statistics: InputStatistics) -> float:
    """Return tr(D H D^T), the mean squared change of a layer's outputs, summed over outputs.

    Args:
        difference: D = Q - W, float32 [outputs, inputs].
        statistics: H = gram / count, or its diagonal where there is no Gram matrix.
    """
    if statistics.gram is None:
        squares = np.einsum("ij,ij->j", difference, difference, dtype=np.float64)
        return float(squares @ statistics.squares) / statistics.count
    product = difference @ statistics.gram
    return float(np.einsum("ij,ij->", product, difference, dtype=np.float64)) / statistics.count
