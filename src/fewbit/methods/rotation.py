"""Orthogonal matrices that spread outliers: normalized Hadamard matrices of many sizes.

Rotating a weight's inputs by H / sqrt(n) gives every new channel an equal part of each old one, so
no channel sticks out of its group (QuIP#, Tseng et al. 2024; QuaRot, Ashkboos et al. 2024). Sizes
that are no power of two are the Kronecker product of Sylvester's matrix with one of Paley's
constructions: 576 = 8 x 72, 640 = 8 x 80, 896 = 4 x 224, 1536 = 4 x 384.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UnsupportedError
from fewbit.keyed_random import Purpose, philox


def hadamard(size: int) -> NDArray[np.float64]:
    """Return an orthogonal matrix [size, size] of elements +-1 / sqrt(size).

    Raises:
        UnsupportedError: no construction known here gives this size.
    """
    doublings = 0
    while size % (2 << doublings) == 0:
        doublings += 1
    for power in range(doublings, -1, -1):
        core = _core(size >> power)
        if core is not None:
            matrix: NDArray[np.float64] = np.kron(sylvester(1 << power), core / np.sqrt(len(core)))
            return matrix
    raise UnsupportedError(
        f"There is no Hadamard matrix of size {size} to rotate with: it is neither a power of two "
        "nor 2^k (q + 1) for a suitable prime q; leave the rotation out."
    )


def randomized(matrix: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return the matrix with the signs of its rows drawn by a seed: still orthogonal.

    Without, the first row of Sylvester's matrix would gather what all channels have in common.
    """
    signed: NDArray[np.float64] = matrix * signs(len(matrix), seed)[:, None]
    return signed


def signs(count: int, seed: int) -> NDArray[np.float64]:
    """Return +1 or -1 drawn by a seed, float64 [count]."""
    return np.array([_sign(seed, row) for row in range(count)])


def block_size(width: int) -> int:
    """Return the largest power of two that divides a width: the blocks that can be rotated fast."""
    return width & -width


def _sign(seed: int, row: int) -> float:
    word = philox((0, row, 0, 0), (seed, int(Purpose.ROTATION)))[0]
    return 1.0 if word >> 63 else -1.0


def sylvester(size: int) -> NDArray[np.float64]:
    """Return the normalized Hadamard matrix of a power of two, [size, size], in natural order.

    It is symmetric, so it undoes itself, and it is what the Program's `Hadamard` multiplies by.
    """
    assert size & (size - 1) == 0
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    normalized: NDArray[np.float64] = matrix / np.sqrt(size)
    return normalized


def _core(size: int) -> NDArray[np.float64] | None:
    """Return a Hadamard matrix of +-1 that is not a doubling, or None."""
    if size == 1:
        return np.ones((1, 1))
    if _is_prime(size - 1) and (size - 1) % 4 == 3:
        return _paley_one(size - 1)
    if size % 2 == 0 and _is_prime(size // 2 - 1) and (size // 2 - 1) % 4 == 1:
        return _paley_two(size // 2 - 1)
    return None


def _paley_one(prime: int) -> NDArray[np.float64]:
    """Return I + S of order prime + 1, S skew-symmetric (Paley 1933, first construction)."""
    skew = np.zeros((prime + 1, prime + 1))
    skew[0, 1:] = 1
    skew[1:, 0] = -1
    skew[1:, 1:] = _jacobsthal(prime)
    return np.eye(prime + 1) + skew


def _paley_two(prime: int) -> NDArray[np.float64]:
    """Return the matrix of order 2 (prime + 1) of Paley's second construction."""
    conference = np.zeros((prime + 1, prime + 1))
    conference[0, 1:] = conference[1:, 0] = 1
    conference[1:, 1:] = _jacobsthal(prime)
    signs = np.array([[1.0, 1.0], [1.0, -1.0]])
    diagonal = np.array([[1.0, -1.0], [-1.0, -1.0]])
    return np.kron(conference, signs) + np.kron(np.eye(prime + 1), diagonal)


def _jacobsthal(prime: int) -> NDArray[np.float64]:
    """Return Q with Q[a, b] = +1 where a - b is a square modulo the prime, -1 where not, 0 at 0."""
    character = np.full(prime, -1.0)
    character[np.arange(1, prime) ** 2 % prime] = 1.0
    character[0] = 0.0
    index = np.arange(prime)
    squares: NDArray[np.float64] = character[(index[:, None] - index[None, :]) % prime]
    return squares


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, int(number**0.5) + 1))
