"""Floats compared by their bits, so that -0 is not 0."""

import numpy as np


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal in shape and bit for bit, float32."""
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def equal_but_for_nans(a: np.ndarray, b: np.ndarray) -> bool:
    """As `same_bits`, but that a NaN equals any NaN: its payload follows the operands' order."""
    if a.shape != b.shape:
        return False
    nans = np.isnan(a) & np.isnan(b)
    return np.array_equal(a.view(np.uint32)[~nans], b.view(np.uint32)[~nans])
