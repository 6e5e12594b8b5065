import itertools
import math

import numpy as np
import pytest

from fewbit.model.config import CONTEXT_LIMIT, THETA_LEAST, THETA_LIMIT
from fewbit.model.rope import RopeConfig, RopeScaling, ScalingKind, rope_frequencies

U = 2.0**-24


def test_plain_frequencies():
    frequencies, factor = rope_frequencies(RopeConfig(10_000.0), 8)
    exact = [10_000.0 ** (-i / 8) for i in range(0, 8, 2)]
    # An exponent rounded by u shifts the power by ln(theta) u; pow and division add a few u.
    np.testing.assert_allclose(frequencies, exact, rtol=(math.log(10_000) + 4) * U)
    assert factor == 1.0


def test_linear_scaling_divides():
    plain, _ = rope_frequencies(RopeConfig(500.0), 16)
    scaled, _ = rope_frequencies(RopeConfig(500.0, RopeScaling(ScalingKind.LINEAR, 4.0)), 16)
    np.testing.assert_array_equal(np.multiply(scaled, 4), plain)


def test_llama3_keeps_the_short_waves_and_divides_the_long_ones():
    scaling = RopeScaling(ScalingKind.LLAMA3, 8.0, 8192)
    plain, _ = rope_frequencies(RopeConfig(500_000.0), 128)
    scaled, _ = rope_frequencies(RopeConfig(500_000.0, scaling), 128)
    ratio = np.divide(plain, scaled)
    wavelength = 2 * np.pi / np.array(plain)
    np.testing.assert_array_equal(ratio[wavelength < 2048], 1)
    np.testing.assert_array_equal(ratio[wavelength > 8192], 8)
    between = ratio[(wavelength >= 2048) & (wavelength <= 8192)]
    assert len(between)
    assert np.all(np.diff(ratio) >= 0)


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_raises_the_factor():
    scaling = RopeScaling(ScalingKind.YARN, 4.0, 32768)
    plain, _ = rope_frequencies(RopeConfig(1e6), 128)
    scaled, factor = rope_frequencies(RopeConfig(1e6, scaling), 128)
    ratio = np.divide(plain, scaled)
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(4, rel=4 * U)
    assert factor == pytest.approx(1 + 0.1 * math.log(4))


def test_stored_divisors_divide():
    scaling = RopeScaling(ScalingKind.FACTORS, divisors=(1.0, 2.0))
    plain, _ = rope_frequencies(RopeConfig(100.0), 4)
    assert rope_frequencies(RopeConfig(100.0, scaling), 4)[0] == (plain[0], plain[1] / 2)


@pytest.mark.parametrize("head_dim", [2, 256])
@pytest.mark.parametrize("theta", [THETA_LEAST, THETA_LIMIT])
def test_the_ends_of_every_range_give_finite_frequencies(theta, head_dim):
    """What reading a configuration lets through; an overflow would be a warning, so an error."""
    kinds = [RopeScaling(ScalingKind.LLAMA3, 1e6, n, 1e-6, 1.000001e-6) for n in (1, CONTEXT_LIMIT)]
    for factor, context, fast, slow in itertools.product(
        (1.0, 1e6), (1, CONTEXT_LIMIT), (1e-3, 1e6), (1e-3, 1e6)
    ):
        kinds.append(RopeScaling(ScalingKind.YARN, factor, context, beta_fast=fast, beta_slow=slow))
    for scaling in kinds:
        frequencies, factor = rope_frequencies(RopeConfig(theta, scaling), head_dim)
        assert np.isfinite([*frequencies, factor]).all()
