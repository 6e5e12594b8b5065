"""Data-free equalization: both sides of a channel end with one range."""

import numpy as np

from fewbit.methods.rescale import equalize


def test_ranges_of_producer_and_consumer_become_proportional():
    random = np.random.default_rng(0)
    produced = random.standard_normal((8, 16)).astype(np.float32) * np.exp2(np.arange(8))[:, None]
    read = random.standard_normal((12, 8)).astype(np.float32)
    factors = equalize(produced.astype(np.float32), [read], np.arange(8))
    before = np.abs(produced).max(axis=1) / factors
    after = np.abs(read).max(axis=0) * factors
    ratio = before / after
    # Factors of geometric mean 1 leave one common ratio; float32 rounds each side once.
    np.testing.assert_allclose(ratio, ratio[0], rtol=2.0**-20)


def test_several_consumers_and_repeated_channels():
    produced = np.float32([[1.0], [4.0]])
    first, second = np.float32([[1, 1, 9, 2]]), np.float32([[0, 1, 0, 0.5]])
    channel_of = np.array([0, 1, 0, 1])
    factors = equalize(produced, [first, second], channel_of)
    # Ranges behind are 9 and 2: sqrt(1 / 9) and sqrt(4 / 2), divided by their geometric mean.
    expected = np.sqrt([1 / 9, 2.0])
    np.testing.assert_allclose(factors, expected / np.sqrt(expected.prod()), rtol=2.0**-22)


def test_a_dead_channel_gets_a_bounded_factor():
    produced = np.ones((4, 3), np.float32)
    read = np.ones((5, 4), np.float32)
    produced[2] = 0
    factors = equalize(produced, [read], np.arange(4))
    assert np.isfinite(factors).all()
    assert (factors > 0).all()
