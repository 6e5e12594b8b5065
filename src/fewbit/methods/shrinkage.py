"""Statistics for an expert that few calibration tokens reached: a blend with those of all tokens.

An expert of a mixture sees only the tokens that are routed to it. Of n such rows the mean Gram
matrix S errs: for rows of a normal distribution with second moments M,

    E ||S - M||^2 = (tr(M)^2 + ||M||^2) / n      (Frobenius norms; by Isserlis' theorem, since
                                                  E |x|^4 = tr(M)^2 + 2 ||M||^2)

so relative to ||M||^2 it errs by (r + 1) / n, where r = tr(M)^2 / ||M||^2 counts the directions
that carry the input. The mean Gram matrix T of the same inputs over all tokens has no such error
but is another expert's, too. Of w T + (1 - w) S the expected error is least (Ledoit and Wolf, 2004)
where w is the one error's share of both, and with a relative distance of 1 between M and T (an
expert may differ from the rest by as much as its own size) that is

    w = k / (n + k),    k = r + 1, with r taken of T.

It is as if k of the rows had been drawn from all tokens: w is 1 where none reached the expert and
falls as k / n. That T's distance is 1, and rows normal, is practice; the rest is established.
"""

from __future__ import annotations

import math

import numpy as np

from fewbit.methods.statistics import InputStatistics

_HARDLY = 0.25
"""Share of all tokens' statistics from which a remark says that few tokens reached the expert."""


def prior_rows(shared: InputStatistics) -> int:
    """Return k, how many rows the statistics of all tokens stand for: from 2 to inputs + 1.

    Without a Gram matrix its diagonal stands for it, which makes k larger, never smaller.
    """
    trace = float(shared.squares.sum())
    if trace == 0.0:
        return 2
    entries = shared.squares if shared.gram is None else shared.gram
    return math.ceil(trace**2 / float(np.square(entries, dtype=np.float64).sum()) - 1e-6) + 1


def share_of_prior(count: int, shared: InputStatistics) -> float:
    """Return w, the weight of the statistics of all tokens for an expert that `count` reached."""
    prior = prior_rows(shared)
    return prior / (count + prior)


def shrunk(own: InputStatistics, shared: InputStatistics) -> InputStatistics:
    """Return an expert's statistics with `prior_rows` average rows of all tokens among them.

    A remark says how many rows were the expert's own.

    Args:
        own: of the rows that reached the expert; there may be none.
        shared: of all tokens' rows of the same input, at least one.
    """
    prior = prior_rows(shared)
    factor = prior / shared.count
    share = prior / (own.count + prior)
    gram = None
    if own.gram is not None and shared.gram is not None:
        gram = own.gram + np.float32(factor) * shared.gram
    return InputStatistics(
        count=own.count + prior,
        squares=own.squares + factor * shared.squares,
        largest=((1 - share) * own.largest + share * shared.largest).astype(np.float32),
        absolute=own.absolute + factor * shared.absolute,
        gram=gram,
        remarks=(_remark(own.count, share),),
        reached=own.count,
    )


def _remark(reached: int, share: float) -> str:
    if reached == 0:
        return "No calibration token reached this expert; its statistics are those of all tokens."
    few = "Only " if share >= _HARDLY else ""
    return (
        f"{few}{reached} calibration tokens reached this expert; its statistics are {share:.1%} "
        "those of all tokens."
    )
