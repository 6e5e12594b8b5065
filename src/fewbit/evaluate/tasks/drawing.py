"""Keyed choices for generated items: the same on every machine and with every version of a library.

What is drawn depends on its key alone, never on what was drawn before, so that an item stays as it
is when others are added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from fewbit.evaluate.tasks.items import ChoiceItem

T = TypeVar("T")


def drawn(key: str, low: int, high: int) -> int:
    """Return a whole number from low to high, both included."""
    return low + _hash(key) % (high - low + 1)


def one_of(key: str, options: Sequence[T]) -> T:
    """Return one of the options."""
    return options[_hash(key) % len(options)]


def shuffled(key: str, options: Iterable[T]) -> list[T]:
    """Return the options in an order of their own."""
    return sorted(options, key=lambda option: _hash(f"{key}/{option}"))


def choice(
    name: str, prompt: str, right: str, wrong: Sequence[str], *, cluster: str = ""
) -> ChoiceItem:
    """Return an item whose options, each behind a space, stand in a drawn order.

    Args:
        name: of the item; it keys the order.
        prompt: the context.
        right: the right option.
        wrong: the others.
        cluster: what it resembles; empty for nothing.
    """
    options = shuffled(name, {right, *wrong})
    continuations = tuple(f" {option}" for option in options)
    return ChoiceItem(name, cluster or name, (prompt,), continuations, options.index(right))


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
