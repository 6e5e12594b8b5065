"""Function-preserving changes of a model's weights, as data.

A `Transform` says what happens to the whole model: channels rescaled at a site, the heads of v and
o rotated, the residual stream rotated. `edits` breaks it down to what happens to each slot's
tensor. Every edit is computed in float64 from float32 and rounded once to float32; factors are not
restricted to powers of two, which would be exact, because steps of a factor of two are coarser than
what a search gains (a quarter of a 4-bit step, say, is a factor of 1.03).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UsageError
from fewbit.methods.rotation import sylvester
from fewbit.model.sites import Site, SiteKind
from fewbit.program import Slot

_Floats: TypeAlias = NDArray[np.float32]
_Doubles: TypeAlias = NDArray[np.float64]
_PIECE = 1 << 20
"""Elements widened to float64 at once."""


class Edit(Protocol):
    """What happens to one slot's tensor."""

    def apply(self, values: _Floats) -> _Floats:
        """Return the changed values, float32 in the same shape."""
        ...


@dataclass(frozen=True, eq=False)
class ScaleColumns:
    """Multiply column j (an element of a vector) by factors[j]; float64 [columns]."""

    factors: _Doubles

    def apply(self, values: _Floats) -> _Floats:
        """Return the products."""
        return _by_rows(values, lambda piece: piece * self.factors)


@dataclass(frozen=True, eq=False)
class ScaleRows:
    """Multiply row i by factors[i]; float64 [rows]."""

    factors: _Doubles

    def apply(self, values: _Floats) -> _Floats:
        """Return the products."""
        scaled: _Floats = (values * self.factors[:, None]).astype(np.float32)
        return scaled


@dataclass(frozen=True, eq=False)
class ScaleNorm:
    """Multiply what a norm multiplies by, (weight + offset), with factors; float64 [n].

    With Gemma's offset of 1 the stored weight is (w + 1) f - 1, not w f.
    """

    factors: _Doubles
    offset: float

    def apply(self, values: _Floats) -> _Floats:
        """Return the weight to store."""
        scaled = (values.astype(np.float64) + self.offset) * self.factors - self.offset
        return scaled.astype(np.float32)


@dataclass(frozen=True)
class Fill:
    """Replace every value."""

    value: float

    def apply(self, values: _Floats) -> _Floats:
        """Return the value everywhere."""
        return np.full_like(values, self.value)


@dataclass(frozen=True, eq=False)
class RotateColumns:
    """Multiply each run of n columns from the right by an orthogonal matrix, float64 [n, n]."""

    matrix: _Doubles

    def apply(self, values: _Floats) -> _Floats:
        """Return the rotated values."""
        size = len(self.matrix)

        def rotated(piece: _Doubles) -> _Doubles:
            turned: _Doubles = (piece.reshape(-1, size) @ self.matrix).reshape(piece.shape)
            return turned

        return _by_rows(values, rotated)


@dataclass(frozen=True, eq=False)
class RotateRows:
    """Multiply each run of n rows from the left by the transpose of a matrix, float64 [n, n]."""

    matrix: _Doubles

    def apply(self, values: _Floats) -> _Floats:
        """Return the rotated values."""
        size = len(self.matrix)
        runs = values.reshape(-1, size, values.shape[1])
        out = np.empty_like(runs)
        for run, turned in zip(runs, out, strict=True):
            turned[...] = self.matrix.T @ run.astype(np.float64)
        return out.reshape(values.shape)


@dataclass(frozen=True, eq=False)
class Rescale:
    """Divide a site's channels by factors where they are produced, multiply the columns by them.

    Raises:
        UsageError: factors that are not finite and positive.
    """

    site: Site
    factors: _Floats
    """float32 [site.width]."""

    def __post_init__(self) -> None:
        assert self.factors.shape == (self.site.width,)
        sound = np.isfinite(self.factors) & (self.factors > 0)
        if not sound.all():
            channel = int(np.argmin(sound))
            raise UsageError(
                f"The factor of channel {channel} at {self.site.buffer} is "
                f"{self.factors[channel]}; factors must be finite and positive."
            )

    def edits(self) -> dict[Slot, tuple[Edit, ...]]:
        """Return what happens to each slot's tensor."""
        site, factors = self.site, self.factors.astype(np.float64)
        columns = ScaleColumns(site.spread(factors).astype(np.float64))
        found: dict[Slot, tuple[Edit, ...]] = dict.fromkeys(site.consumers, (columns,))
        for slot in site.producers:
            found[slot] = (_produced(slot, 1.0 / factors, site),)
        return found


@dataclass(frozen=True, eq=False)
class RotateHeads:
    """Rotate the elements of every value head, and turn them back in o's columns.

    Attention mixes values of one head with weights that know nothing of their elements, so
    sum p (v R) = (sum p v) R.
    """

    site: Site
    """Of kind `VALUES`."""
    matrix: _Doubles
    """Orthogonal, float64 [head_dim, head_dim]."""

    def __post_init__(self) -> None:
        assert self.site.kind is SiteKind.VALUES
        _check_orthogonal(self.matrix, self.site.run)

    def edits(self) -> dict[Slot, tuple[Edit, ...]]:
        """Return what happens to each slot's tensor."""
        columns, rows = RotateColumns(self.matrix), RotateRows(self.matrix)
        found: dict[Slot, tuple[Edit, ...]] = dict.fromkeys(self.site.consumers, (columns,))
        for slot in self.site.producers:
            found[slot] = (columns if slot.endswith(".bias") else rows,)
        return found


@dataclass(frozen=True, eq=False)
class Fold:
    """A norm's weight moved into the columns of the matrices behind it."""

    factors: _Doubles
    """weight + offset, float64 [hidden]."""
    offset: float
    consumers: tuple[Slot, ...]


@dataclass(frozen=True, eq=False)
class RotateResidual:
    """Rotate the residual stream, x -> x R: everything that writes it and everything that reads it.

    A norm's weight does not commute with R and is folded into the matrices behind it first:
    W diag(w + offset) R. Made by `residual.rotate_residual`, which knows who reads and writes.
    """

    matrix: _Doubles
    """Orthogonal, float64 [hidden, hidden]."""
    readers: tuple[Slot, ...]
    """Matrices whose columns are residual channels."""
    writers: tuple[Slot, ...]
    """Matrices whose rows, and biases whose elements, are residual channels."""
    folds: Mapping[Slot, Fold] = field(default_factory=dict)
    """By norm."""
    untied: bool = False
    """Whether a table shared by input and output must become two."""

    def __post_init__(self) -> None:
        _check_orthogonal(self.matrix, len(self.matrix))

    def edits(self) -> dict[Slot, tuple[Edit, ...]]:
        """Return what happens to each slot's tensor, folds first."""
        found: dict[Slot, tuple[Edit, ...]] = {}
        for norm, fold in self.folds.items():
            found[norm] = (Fill(1.0 - fold.offset),)
            found |= {slot: (ScaleColumns(fold.factors),) for slot in fold.consumers}
        columns, rows = RotateColumns(self.matrix), RotateRows(self.matrix)
        for slot in self.readers:
            found[slot] = (*found.get(slot, ()), columns)
        for slot in self.writers:
            found[slot] = (columns if slot.endswith(".bias") else rows,)
        return found


@dataclass(frozen=True, eq=False)
class RotateMlp:
    """Rotate what every down projection reads, by an op in front of it, and back in its columns.

    The op is `Hadamard` in blocks of `size`: (x s H) (W s H)^T = x W^T, with signs s that up's rows
    take in, since a gate multiplies each channel alone.
    """

    sites: tuple[Site, ...]
    """Of kind `UP`, one for every layer."""
    size: int
    """Elements of a block: a power of two that divides the width."""
    signs: _Doubles
    """+1 or -1 for each channel, float64 [width]; the same in all layers."""

    def __post_init__(self) -> None:
        assert all(site.kind is SiteKind.UP for site in self.sites)
        assert all(site.width == len(self.signs) for site in self.sites)
        assert (np.abs(self.signs) == 1).all()

    def edits(self) -> dict[Slot, tuple[Edit, ...]]:
        """Return what happens to each slot's tensor."""
        columns = ScaleColumns(self.signs), RotateColumns(sylvester(self.size))
        found: dict[Slot, tuple[Edit, ...]] = {}
        for site in self.sites:
            found |= dict.fromkeys(site.consumers, columns)
            found |= {slot: (_produced(slot, self.signs, site),) for slot in site.producers}
        return found


Transform: TypeAlias = Rescale | RotateHeads | RotateResidual | RotateMlp


def _produced(slot: Slot, factors: _Doubles, site: Site) -> Edit:
    if site.kind is SiteKind.NORM:
        return ScaleNorm(factors, site.offset)
    return ScaleColumns(factors) if slot.endswith(".bias") else ScaleRows(factors)


def _check_orthogonal(matrix: _Doubles, size: int) -> None:
    assert matrix.shape == (size, size)
    away = np.abs(matrix.T @ matrix - np.eye(size)).max()
    # Each element is a sum of `size` products of elements at most 1: size * 2^-52 and a margin.
    assert away < size * 2.0**-48, f"the matrix is {away} away from an orthogonal one"


def _by_rows(values: _Floats, change: Callable[[_Doubles], _Doubles]) -> _Floats:
    """Return change(values), a few rows at a time."""
    out = np.empty_like(values)
    step = max(1, _PIECE // values.shape[1])
    for start in range(0, len(values), step):
        out[start : start + step] = change(values[start : start + step].astype(np.float64))
    return out
