"""SmoothQuant (Xiao et al. 2023): move the range of activations into the weights.

With one int8 scale per token, the channel of largest magnitude sets the step of all others. The
factors s_j = max|x_j|^alpha / max|w_j|^(1 - alpha) (equation 4) divide such channels, and the
weights' columns take them in. Three things differ from the paper. The maximum is over rows divided
by their own largest element, which is all that counts where each row has a scale. Alpha is searched
per site, by the error that counts when both sides are rounded, that of the layer's outputs on a
sample of rows: sum_r ||x_r W^T - Q_a(x_r / s) Q_w(W s)^T||^2 / ||x_r W^T||^2. And rows are relative
to what they bring there: norms divide it out again, and the few tokens whose outputs are a hundred
times as large, as the first of a text has inside the MLP, would otherwise choose for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.activations import quantize_tokens
from fewbit.methods.scaling import (
    Consumer,
    Rounding,
    Scaling,
    channel_largest,
    floored_logarithms,
    rounded,
    sound_factors,
    unscaled,
)

ALPHAS: tuple[float, ...] = tuple(step / 20 for step in range(21))

RoundInputs: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Rows of inputs -> the rows rounded as the layer's kernel will round them, and decoded."""


def int8_per_token(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows rounded to int8 with a scale each, as `int8-token` does, and decoded."""
    codes, scales = quantize_tokens(x)
    values: NDArray[np.float32] = codes * scales[:, None]
    return values


def search_smoothquant(
    consumers: Sequence[Consumer],
    sample: NDArray[np.float32],
    channel_of: NDArray[np.intp],
    *,
    round_inputs: RoundInputs = int8_per_token,
    rounding: Rounding = rounded,
) -> Scaling:
    """Return the factors of least relative output error.

    No scaling is among the candidates and wins ties.

    Args:
        consumers: the matrices that read the site; kept ones read rounded inputs no less, but in
            float32, so they do not count.
        sample: rows of the input, float32 [rows, inputs], on which the error is measured.
        channel_of: [inputs], the channel of each input; several inputs may repeat one.
        round_inputs: how the layers will round their inputs.
        rounding: how weights are rounded.

    Raises:
        UnsupportedError, UsageError, NumericalError: as the rounding.
    """
    read = [consumer for consumer in consumers if consumer.form is not None]
    wanted = [sample @ consumer.weight.T for consumer in read]
    shares = _row_shares(wanted)

    def error(factors: NDArray[np.float32]) -> float:
        spread = factors[channel_of]
        inputs = round_inputs(sample / spread)
        total = 0.0
        for consumer, exact in zip(read, wanted, strict=True):
            assert consumer.form is not None
            found = inputs @ rounding(consumer.weight * spread, consumer.form).T
            total += float(np.square(found - exact, dtype=np.float64).sum(axis=1) @ shares)
        return total

    x = floored_logarithms(channel_largest(_largest(sample), channel_of))
    columns = np.max([np.abs(consumer.weight).max(axis=0) for consumer in read], axis=0)
    w = floored_logarithms(channel_largest(columns, channel_of))
    candidates = {alpha: sound_factors(alpha * x - (1 - alpha) * w) for alpha in ALPHAS}
    errors = {alpha: error(factors) for alpha, factors in candidates.items()}
    before = error(np.ones(len(x), np.float32))
    alpha = min(errors, key=lambda a: errors[a])
    if not errors[alpha] < before:
        return unscaled(len(x), before)
    return Scaling(candidates[alpha], f"alpha {alpha:g}", before, errors[alpha])


def _largest(sample: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the largest magnitude of each input among rows whose own largest is 1, [inputs]."""
    magnitudes = np.abs(sample)
    rows = magnitudes.max(axis=1, keepdims=True)
    relative = np.divide(magnitudes, rows, out=np.zeros_like(magnitudes), where=rows > 0)
    largest: NDArray[np.float32] = relative.max(axis=0)
    return largest


def _row_shares(outputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Return 1 / (rows * energy) of each row's outputs together, 0 for a row of zeros."""
    energy = sum(
        (np.square(found, dtype=np.float64).sum(axis=1) for found in outputs),
        start=np.zeros(len(outputs[0])),
    )
    shares: NDArray[np.float64] = np.divide(
        1.0, energy * len(energy), out=np.zeros_like(energy), where=energy > 0
    )
    return shares
