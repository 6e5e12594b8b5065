"""Rotary position embedding: how a configuration's words become one frequency per pair.

Frequencies are computed in float32, in the order of operations of `transformers`, so that the
tables of both agree to the last bit or two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UnsupportedError


class ScalingKind(Enum):
    """How frequencies are changed for a context longer than the one first trained on."""

    NONE = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    FACTORS = "factors"
    """One divisor per frequency, as a GGUF file stores Llama 3's scaling."""


@dataclass(frozen=True)
class RopeScaling:
    """A kind with its parameters; fields that the kind does not use keep their defaults."""

    kind: ScalingKind = ScalingKind.NONE
    factor: float = 1.0
    original_context: int = 0
    low_frequency: float = 1.0
    """LLAMA3: wavelengths above original_context / low_frequency are divided by the factor."""
    high_frequency: float = 4.0
    """LLAMA3: wavelengths below original_context / high_frequency are kept."""
    attention_factor: float | None = None
    """YARN: factor on cos and sin; None derives it from `factor`."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()
    """FACTORS: head_dim / 2 values."""


@dataclass(frozen=True)
class RopeConfig:
    """The base of the frequencies and their scaling."""

    theta: float
    scaling: RopeScaling = RopeScaling()


def rope_frequencies(rope: RopeConfig, head_dim: int) -> tuple[tuple[float, ...], float]:
    """Return float32 frequencies in radians per position, head_dim / 2 of them, and the factor.

    The factor multiplies cos and sin; it is 1 except with YaRN (Peng et al., "YaRN: Efficient
    Context Window Extension of Large Language Models", 2023).
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain = np.float32(1.0) / np.power(np.float32(rope.theta), exponents)
    scaling = rope.scaling
    factor = 1.0
    match scaling.kind:
        case ScalingKind.NONE:
            scaled = plain
        case ScalingKind.LINEAR:
            scaled = plain / np.float32(scaling.factor)
        case ScalingKind.LLAMA3:
            scaled = _llama3(plain, scaling)
        case ScalingKind.YARN:
            scaled = _yarn(plain, scaling, rope.theta, head_dim)
            factor = yarn_attention_factor(scaling)
        case ScalingKind.FACTORS:
            scaled = plain / np.asarray(scaling.divisors, np.float32)
    return tuple(float(f) for f in scaled.astype(np.float32)), factor


def llama3_from_divisors(rope: RopeConfig, head_dim: int) -> RopeConfig:
    """Return the LLAMA3 scaling whose frequencies the stored divisors give.

    A GGUF file holds the divisors only. The published models use an original context of 8,192 and
    wavelength bounds 1 and 4; the factor is the largest divisor.

    Raises:
        UnsupportedError: no such scaling reproduces the divisors to one part in 100,000.
    """
    candidate = RopeConfig(
        rope.theta, RopeScaling(ScalingKind.LLAMA3, max(rope.scaling.divisors), 8192)
    )
    wanted, _ = rope_frequencies(rope, head_dim)
    found, _ = rope_frequencies(candidate, head_dim)
    if not np.allclose(wanted, found, rtol=1e-5, atol=0.0):
        raise UnsupportedError(
            "The tensor 'rope_freqs.weight' holds divisors that are not those of Llama 3's rope "
            "scaling, so no Hugging Face configuration can express them; write GGUF instead."
        )
    return candidate


def _llama3(plain: NDArray[np.float32], scaling: RopeScaling) -> NDArray[np.float32]:
    context = scaling.original_context
    wavelength = np.float32(2 * math.pi) / plain
    long = wavelength > context / scaling.low_frequency
    short = wavelength < context / scaling.high_frequency
    scaled = np.where(long, plain / np.float32(scaling.factor), plain)
    span = np.float32(scaling.high_frequency - scaling.low_frequency)
    smooth = (np.float32(context) / wavelength - np.float32(scaling.low_frequency)) / span
    blended = (1 - smooth) * scaled / np.float32(scaling.factor) + smooth * scaled
    return np.where(~long & ~short, blended, scaled)


def _yarn(
    plain: NDArray[np.float32], scaling: RopeScaling, theta: float, head_dim: int
) -> NDArray[np.float32]:
    low, high = (
        _yarn_dimension(rotations, scaling, theta, head_dim)
        for rotations in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    pairs = np.arange(head_dim // 2, dtype=np.float32)
    ramp = np.clip((pairs - np.float32(low)) / np.float32(width), 0, 1)
    scaled: NDArray[np.float32] = plain / np.float32(scaling.factor) * ramp + plain * (1 - ramp)
    return scaled


def _yarn_dimension(rotations: float, scaling: RopeScaling, theta: float, head_dim: int) -> float:
    """Return the dimension that turns `rotations` times over the original context."""
    turns = scaling.original_context / (rotations * 2 * math.pi)
    return head_dim * math.log(turns) / (2 * math.log(theta))


def yarn_attention_factor(scaling: RopeScaling) -> float:
    """Return what YaRN multiplies cos and sin with."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 1.0 if scaling.factor <= 1 else 0.1 * math.log(scaling.factor) + 1.0
