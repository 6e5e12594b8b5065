"""What the axis of numerics has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.drawn import Curve


class SiteNumerics(Record, frozen=True, kw_only=True):
    """The values at one place of a layer, on both arms, over all tokens that were run."""

    layer: int
    """-1 outside the layers."""
    site: str
    """The op that wrote them."""
    role: str
    """What they are: `input` of matrices, `key`, `value`, `residual`, `router` or `experts`."""
    source_largest: float
    """The largest finite magnitude."""
    candidate_largest: float
    source_outlier: float
    """The largest magnitude over the median one."""
    candidate_outlier: float
    source_not_finite: int = 0
    candidate_not_finite: int = 0
    source_clipped: float = 0.0
    """Share of values that a static scale of int8 activations clips."""
    candidate_clipped: float = 0.0
    source_zeroed: float = 0.0
    """Share of values that rounding to int8 makes zero, their scale being that of an outlier."""
    candidate_zeroed: float = 0.0
    candidate_overflow: int = 0
    """Keys or values beyond what their store can hold."""
    static: bool = False
    """Whether a static scale rounds it on either arm, so that something could be clipped."""


class ExpertNumerics(Record, frozen=True, kw_only=True):
    """The tokens of one expert."""

    layer: int
    expert: int
    source_tokens: int
    candidate_tokens: int
    same_tokens: int
    """That pass it on both arms."""
    divergence: float | None
    """Mean KL(source || candidate) in nats at the source's tokens; None without any."""
    rare: bool
    """It has under a quarter of the tokens that it would have if all had as many."""


class NumericsDetails(Record, frozen=True, kw_only=True, tag="numerics"):
    """What was looked at while both arms ran over the same tokens."""

    text: str
    windows: int
    tokens: int
    sites: tuple[SiteNumerics, ...]
    """In the Program's order."""
    experts: tuple[ExpertNumerics, ...] = ()
    outliers: tuple[Curve, ...] = ()
