"""How the inputs of layers with integer weights are rounded to int8: the truth for the kernels.

A code is q = clip(round_half_even(x / scale), -127, 127) and stands for q * scale, in float32. The
three ways differ in what shares a scale, which is absmax / 127 of it in float32:

    int8-g32     32 inputs of a row
    int8-token   a row: what deployments call dynamic W8A8
    int8-static  everything: the scale was calibrated, and larger inputs are clipped

A scale of 0 has codes of 0.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Codes: TypeAlias = NDArray[np.int8]

ACTIVATION_RUN = 32
"""Inputs that share one dynamic scale under `int8-g32`."""


def quantize_activations(x: Floats) -> tuple[Codes, Floats]:
    """Round x [rows, n * 32] as `int8-g32` does.

    Returns:
        codes [rows, n * 32] and scales [rows, n].
    """
    runs = x.reshape(len(x), x.shape[1] // ACTIVATION_RUN, ACTIVATION_RUN)
    scales = np.abs(runs).max(axis=-1) / np.float32(127)
    return _codes(runs, scales[..., None]).reshape(x.shape), scales


def quantize_tokens(x: Floats) -> tuple[Codes, Floats]:
    """Round x [rows, n] as `int8-token` does; return codes [rows, n] and scales [rows]."""
    scales = np.abs(x).max(axis=-1) / np.float32(127)
    return _codes(x, scales[:, None]), scales


def quantize_static(x: Floats, scale: float) -> Codes:
    """Round x [rows, n] to codes [rows, n] as `int8-static` does."""
    return _codes(x, np.full((1, 1), scale, np.float32))


def static_scale(largest: Floats) -> float:
    """Return the scale of `int8-static` for inputs of at most these magnitudes, float32 [inputs].

    A float32 number, so that it survives being written down as a float64.
    """
    return float(np.float32(np.max(largest, initial=0)) / np.float32(127))


def _codes(x: Floats, scales: Floats) -> Codes:
    """Return codes within [-127, 127] even where a subnormal scale is inexact."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotients = np.where(scales > 0, x / scales, np.float32(0))
    codes: Codes = np.clip(np.rint(quotients), -127, 127).astype(np.int8)
    return codes
