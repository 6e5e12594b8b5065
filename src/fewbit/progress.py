"""What long work tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is; a note where there is no
amount."""

Fetching: TypeAlias = Callable[[int, int], None]
"""Told while bytes arrive how many are there, and how many there will be."""


def unwatched(_what: str, _done: int, _all: int) -> None:
    """Tell nobody."""


def unwatched_bytes(_done: int, _all: int) -> None:
    """Tell nobody."""
