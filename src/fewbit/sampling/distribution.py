"""The slow truth of the pipeline, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.sampling.faults import drawing_fault
from fewbit.sampling.params import BAN, SamplingParams


@dataclass(frozen=True, eq=False)
class History:
    """The tokens before the one to draw: int32 [tokens], of which the first `prompt` were given."""

    tokens: NDArray[np.int32]
    prompt: int


NO_HISTORY = History(np.empty(0, np.int32), 0)


def distribution(
    logits: NDArray[np.float32],
    params: SamplingParams,
    history: History = NO_HISTORY,
    *,
    vocabulary: int | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Return the probabilities that a token is drawn from, float64 [V].

    Args:
        logits: float32 [V], as the model gives them.
        params: the request's choices.
        history: what penalties look at.
        vocabulary: ids from here on are padding and never drawn; None for no padding.
        allowed: bool [V], what a constraint lets come; None for no constraint.

    Raises:
        NumericalError: a logit is not finite, or every token is banned; says where.
    """
    adjusted = adjusted_logits(logits, params, history, vocabulary=vocabulary, allowed=allowed)
    best = int(np.argmax(adjusted))
    if params.greedy:
        return np.asarray(np.arange(len(adjusted)) == best, np.float64)
    scaled = (adjusted - adjusted[best]) / np.float32(params.temperature)
    mass = np.exp(scaled.astype(np.float64))
    kept = _kept(scaled, mass, params)
    mass[~kept] = 0.0
    return np.asarray(mass / mass.sum())


def adjusted_logits(
    logits: NDArray[np.float32],
    params: SamplingParams,
    history: History = NO_HISTORY,
    *,
    vocabulary: int | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Return the logits after masks, bias and penalties, float32 [V]; banned tokens are -inf.

    Raises:
        NumericalError: a logit is not finite, or every token is banned.
    """
    limit = len(logits) if vocabulary is None else vocabulary
    bad = np.flatnonzero(~np.isfinite(logits[:limit]))
    if bad.size:
        raise drawing_fault("not_finite", int(bad[0]), float(logits[bad[0]]))
    adjusted = np.array(logits, np.float32)
    adjusted[limit:] = -np.inf
    for token, bias in params.logit_bias.items():
        adjusted[token] = -np.inf if bias <= BAN else adjusted[token] + np.float32(bias)
    _penalize(adjusted, params, history)
    if allowed is not None:
        adjusted[~allowed] = -np.inf
    if not np.isfinite(adjusted).any():
        raise drawing_fault("all_masked", 0, 0.0)
    return adjusted


def _penalize(adjusted: NDArray[np.float32], params: SamplingParams, history: History) -> None:
    seen = np.unique(history.tokens)
    penalty = np.float32(params.repetition_penalty)
    if penalty != 1:
        values = adjusted[seen]
        adjusted[seen] = np.where(values > 0, values / penalty, values * penalty)
    made, counts = np.unique(history.tokens[history.prompt :], return_counts=True)
    frequency, presence = (
        np.float32(params.frequency_penalty),
        np.float32(params.presence_penalty),
    )
    adjusted[made] -= frequency * counts.astype(np.float32) + presence


def _kept(
    scaled: NDArray[np.float32], mass: NDArray[np.float64], params: SamplingParams
) -> NDArray[np.bool_]:
    """Return which tokens survive top-k, top-p and min-p."""
    order = np.argsort(-scaled, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        reached = np.cumsum(mass[order])
        order = order[: int(np.searchsorted(reached, params.top_p * reached[-1])) + 1]
    kept = np.zeros(len(scaled), np.bool_)
    kept[order] = True
    return np.asarray(kept & (mass >= params.min_p) & (mass > 0))
