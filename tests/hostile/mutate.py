"""Seeded damage: files cut, flipped, overwritten, shifted."""

from __future__ import annotations

import random
from collections.abc import Callable

_NUMBERS = (0, 1, 2, 31, 32, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40)
_WIDE = (*_NUMBERS, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 1)
_TOKENS = (b'"', b"{", b"}", b"[", b"]", b",", b":", b"-", b"e9", b"null", b"1e999", b"NaN", b"\\u")


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def _flip(content: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def _overwrite(content: bytes, chance: random.Random) -> bytes:
    width = chance.choice((4, 8))
    number = chance.choice(_NUMBERS if width == 4 else _WIDE) & ((1 << 8 * width) - 1)
    at = chance.randrange(len(content))
    return content[:at] + number.to_bytes(width, "little") + content[at + width :]


def _splice(content: bytes, chance: random.Random) -> bytes:
    """Take a piece away, or put it in a second time."""
    at, to = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    where = chance.choice((at, to, len(content)))
    return content[:at] + content[to:] if where == at else content[:where] + content[at:]


def _insert(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] + chance.choice(_TOKENS) + content[at:]


_WAYS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _cut,
    _flip,
    _flip,
    _overwrite,
    _overwrite,
    _splice,
    _insert,
)


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Return the content damaged in one or two ways."""
    for _ in range(chance.choice((1, 1, 2))):
        if content:
            content = chance.choice(_WAYS)(content, chance)
    return content
