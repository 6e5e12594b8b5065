"""Random numbers keyed by what they are for, never drawn from a shared stream.

A number is a pure function of (seed, sample, position, purpose), so neither batching nor
speculation nor the order of calls can change it. The generator is Philox4x64-10 (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011): key = (seed, purpose),
counter = (0, position, sample, start). `native/src/sampling` holds the same function.

`start` is 0 but for numbers that draft or judge a block of tokens, of which it is the position of
the first. A rule that looks at a whole block before it rejects the ending of it has used up the
numbers of that ending: a later block over the same positions must get others. Of several candidates
for one position all but the first have numbers of their own (`block_key`).
"""

from __future__ import annotations

from enum import IntEnum

_MASK = (1 << 64) - 1
_MULTIPLIER_0 = 0xD2E7470EE14C6C93
_MULTIPLIER_1 = 0xCA5A826395121157
_WEYL_0 = 0x9E3779B97F4A7C15
_WEYL_1 = 0xBB67AE8584CAA73B
_ROUNDS = 10


class Purpose(IntEnum):
    """What a random number decides; two purposes never share a number."""

    TOKEN = 0
    DRAFT = 1
    ACCEPT = 2
    CORRECT = 3
    BOOTSTRAP = 4
    ROTATION = 5
    CALIBRATION = 6
    TUNING = 7
    EXPORT = 8
    HAYSTACK = 9


def block_key(start: int, rank: int) -> int:
    """Return `start` for numbers about the candidate of this rank for a position; 0 is the first.

    Positions lie below 2^32, so no two candidates share a number.
    """
    return start + (rank << 32)


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the four 64-bit words of one Philox4x64-10 block."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = _MULTIPLIER_0 * c0
        product1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product1 >> 64) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> 64) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, sample: int, position: int, purpose: Purpose, start: int = 0) -> float:
    """Return a float64 in [0, 1) with 53 random bits, the same for the same arguments."""
    counter = (0, position & _MASK, sample & _MASK, start & _MASK)
    word = philox(counter, (seed & _MASK, int(purpose)))[0]
    return (word >> 11) * 2.0**-53
