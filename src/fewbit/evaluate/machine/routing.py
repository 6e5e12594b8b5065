"""Which experts tokens pass on both arms, how those tokens fare, and which expert is broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.program import Buffer, Mixture, Program
from fewbit.records.numerics import ExpertNumerics
from fewbit.runtime.mixture import route

Seen: TypeAlias = Mapping[Buffer, NDArray[np.float32]]
"""What routers and mixtures wrote in a step, by buffer."""

RARE = 0.25
"""An expert is rare with under this share of the tokens that it would have if all had as many."""


@dataclass
class _Layer:
    """Counts of one mixture; arrays [experts] and, for each step, the source's choices."""

    op: Mixture
    source: NDArray[np.int64]
    candidate: NDArray[np.int64]
    same: NDArray[np.int64]
    divergence: NDArray[np.float64]
    accused: NDArray[np.bool_]
    """Chosen by a row that came out not finite."""
    cleared: NDArray[np.bool_]
    """Chosen by a row that came out finite."""
    steps: list[NDArray[np.bool_]] = field(default_factory=list)
    """Of each step, whether a row passes an expert on the source, [rows, experts]."""


class Routing:
    """Adds up, step by step, what passes the mixtures of both arms."""

    def __init__(self, program: Program) -> None:
        """Begin without tokens."""
        self._layers = [_layer(op) for op in program.ops if isinstance(op, Mixture)]

    @property
    def mixtures(self) -> bool:
        """Whether there is anything to add up."""
        return bool(self._layers)

    def add(self, source: Seen, candidate: Seen, divergence: NDArray[np.float64]) -> None:
        """Add the rows of a step.

        Args:
            source: of the source.
            candidate: of the candidate, over the same tokens.
            divergence: KL(source || candidate) in nats after each row, float64 [rows]; NaN where
                an arm's logits are not finite.
        """
        known = np.nan_to_num(divergence, nan=0.0)
        for layer in self._layers:
            one, other = passed(source, layer.op), passed(candidate, layer.op)
            layer.source += one.sum(axis=0)
            layer.candidate += other.sum(axis=0)
            layer.same += (one & other).sum(axis=0)
            layer.divergence += known @ one
            layer.steps.append(one)
            finite = np.isfinite(candidate[layer.op.out]).all(axis=1)
            layer.accused |= other[~finite].any(axis=0)
            layer.cleared |= other[finite].any(axis=0)

    def experts(self) -> tuple[ExpertNumerics, ...]:
        """Return what was added up, expert by expert."""
        return tuple(
            ExpertNumerics(
                layer=layer.op.layer,
                expert=e,
                source_tokens=int(layer.source[e]),
                candidate_tokens=int(layer.candidate[e]),
                same_tokens=int(layer.same[e]),
                divergence=_mean(float(layer.divergence[e]), int(layer.source[e])),
                rare=bool(_rare(layer)[e]),
            )
            for layer in self._layers
            for e in range(len(layer.source))
        )

    def rare_rows(self) -> list[NDArray[np.bool_]]:
        """Return of each step, in order, which rows pass a rare expert on the source; [rows]."""
        by_layer = [
            [step[:, _rare(layer)].any(axis=1) for step in layer.steps] for layer in self._layers
        ]
        return [np.logical_or.reduce(step) for step in zip(*by_layer, strict=True)]

    def broken(self) -> tuple[tuple[int, int], ...]:
        """Return (layer, expert) of those that only rows passed that came out not finite."""
        return tuple(
            (layer.op.layer, int(e))
            for layer in self._layers
            for e in np.flatnonzero(layer.accused & ~layer.cleared)
        )


def _mean(total: float, tokens: int) -> float | None:
    return total / tokens if tokens else None


def passed(seen: Seen, op: Mixture) -> NDArray[np.bool_]:
    """Return whether each row passes each expert, bool [rows, experts].

    Rows whose router is not finite pass none.
    """
    router = seen[op.router]
    finite = np.isfinite(router).all(axis=1)
    found = np.zeros(router.shape, np.bool_)
    chosen, _ = route(router[finite], op)
    found[np.flatnonzero(finite)[:, None], chosen] = True
    return found


def _rare(layer: _Layer) -> NDArray[np.bool_]:
    """Return which experts have few of the source's tokens; those without any have no rows."""
    rare: NDArray[np.bool_] = layer.source < RARE * layer.source.sum() / len(layer.source)
    return rare


def _layer(op: Mixture) -> _Layer:
    experts = len(op.experts)
    return _Layer(
        op,
        source=np.zeros(experts, np.int64),
        candidate=np.zeros(experts, np.int64),
        same=np.zeros(experts, np.int64),
        divergence=np.zeros(experts),
        accused=np.zeros(experts, np.bool_),
        cleared=np.zeros(experts, np.bool_),
    )
