"""Token windows to calibrate on, with the rows that count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UsageError
from fewbit.records.calibration import CalibrationFacts, CalibrationText


@dataclass(frozen=True, eq=False)
class CalibrationSet:
    """Sequences that are run through a model, each from position 0, and what they are."""

    windows: tuple[NDArray[np.int32], ...]
    """Token ids of each sequence, int32 [tokens]."""
    masks: tuple[NDArray[np.bool_], ...]
    """Bool [tokens] of each: whether a row counts in statistics and losses; padding does not."""
    facts: CalibrationFacts

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        return tuple(len(window) for window in self.windows)

    def pieces(self, tokens: int) -> Iterator[slice]:
        """Yield runs of consecutive sequences of at most `tokens` tokens, one sequence at least."""
        start = size = 0
        for index, length in enumerate(self.lengths):
            if index > start and size + length > tokens:
                yield slice(start, index)
                start, size = index, 0
            size += length
        if start < len(self.windows):
            yield slice(start, len(self.windows))


def calibration_set(  # noqa: PLR0913
    windows: Sequence[NDArray[np.int32]],
    texts: Sequence[CalibrationText],
    *,
    window_tokens: int,
    masks: Sequence[NDArray[np.bool_]] | None = None,
    seed: int | None = None,
    remarks: Sequence[str] = (),
) -> CalibrationSet:
    """Return windows as a set with its record; without masks every row counts.

    Raises:
        UsageError: there is no window, or no row that counts.
    """
    kept = tuple(np.ascontiguousarray(window, np.int32) for window in windows)
    shown = _whole(kept) if masks is None else masks
    counted = sum(int(mask.sum()) for mask in shown)
    if not counted:
        raise UsageError(
            f"The calibration text gives {len(kept)} windows without a token that counts; give "
            "more text with --calibration."
        )
    facts = CalibrationFacts(
        texts=tuple(texts),
        windows=len(kept),
        window_tokens=window_tokens,
        tokens=sum(map(len, kept)),
        counted=counted,
        tokens_sha256=window_digest(kept, shown),
        seed=seed,
        remarks=tuple(remarks),
    )
    return CalibrationSet(kept, tuple(shown), facts)


def window_digest(
    windows: Sequence[NDArray[np.int32]], masks: Sequence[NDArray[np.bool_]] | None = None
) -> str:
    """Return the SHA-256, hexadecimal, of every window's length, ids and mask, in order.

    Without masks every row counts.
    """
    shown = _whole(windows) if masks is None else masks
    running = hashlib.sha256()
    for window, mask in zip(windows, shown, strict=True):
        running.update(len(window).to_bytes(8, "little"))
        running.update(window.astype("<i4").tobytes())
        running.update(mask.astype(np.bool_).tobytes())
    return running.hexdigest()


def _whole(windows: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.bool_], ...]:
    return tuple(np.ones(len(window), np.bool_) for window in windows)
