"""What the source says: its final states, computed once and kept in a file.

A state of `hidden` numbers stands for a distribution over the whole vocabulary: the source's head
makes it again with one product. The file holds them in the arithmetic that tuning runs in, so in
bf16 nothing is lost beyond what that arithmetic rounds anyway.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit.atomic import reserve, write_bytes
from fewbit.tune.source import RunSource

_BYTES = {torch.float32: 4, torch.bfloat16: 2}


@dataclass(frozen=True, eq=False)
class Batch:
    """Windows side by side, the shorter ones padded at their end."""

    tokens: Tensor
    """int64 [windows, length]."""
    shares: Tensor
    """float32 [windows * length], what each position counts: equal parts of 1, 0 where masked."""
    windows: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Text:
    """All windows, those trained on first, then the held-out ones."""

    windows: Sequence[NDArray[np.int32]]
    masks: Sequence[NDArray[np.bool_]]

    def batch(self, chosen: Sequence[int]) -> Batch:
        """Return windows by number as a batch."""
        length = max(len(self.windows[i]) for i in chosen)
        tokens = np.zeros((len(chosen), length), np.int64)
        counted = np.zeros((len(chosen), length), np.float32)
        for row, i in enumerate(chosen):
            tokens[row, : len(self.windows[i])] = self.windows[i]
            counted[row, : len(self.windows[i])] = self.masks[i]
        shares = counted.reshape(-1) / max(float(counted.sum()), 1.0)
        return Batch(torch.from_numpy(tokens), torch.from_numpy(shares), tuple(chosen))

    @property
    def starts(self) -> NDArray[np.int64]:
        """The row in the file at which each window's states begin, and where the last ends."""
        return np.concatenate([[0], np.cumsum([len(window) for window in self.windows])])


class States:
    """The file of states, written a batch at a time; what a stopped run wrote is not done again."""

    def __init__(self, path: Path, text: Text, hidden: int, arithmetic: torch.dtype, key: str):
        self._path, self._text, self._hidden = path, text, hidden
        self._arithmetic, self._key = arithmetic, key
        self._starts = text.starts
        shape = (int(self._starts[-1]), hidden * _BYTES[arithmetic])
        self._done = self._found(math.prod(shape))
        if not self._done:
            reserve(path, math.prod(shape))
        self._rows = np.memmap(path, np.uint8, "r+", shape=shape)

    def fill(self, run: RunSource, size: int, told: Callable[[int, int], None]) -> None:
        """Run the source over what is not there yet, `size` windows at a time."""
        total = len(self._text.windows)
        while self._done < total:
            chosen = range(self._done, min(self._done + size, total))
            batch = self._text.batch(chosen)
            with torch.no_grad():
                states = run(batch.tokens)
            for row, i in enumerate(chosen):
                self._write(i, states[row, : len(self._text.windows[i])])
            self._rows.flush()
            self._done = chosen.stop
            write_bytes(self._note, self._facts(self._done))
            told(self._done, total)

    def of(self, batch: Batch) -> Tensor:
        """Return a batch's states, [windows * length, hidden], zero where there is padding."""
        count, length = batch.tokens.shape
        out = torch.zeros(count, length, self._hidden, dtype=self._arithmetic)
        for row, i in enumerate(batch.windows):
            out[row, : len(self._text.windows[i])] = self._read(i)
        return out.flatten(0, 1)

    @property
    def _note(self) -> Path:
        return self._path.with_suffix(".json")

    def _facts(self, done: int) -> bytes:
        facts = {"key": self._key, "hidden": self._hidden, "type": str(self._arithmetic)}
        return json.dumps({**facts, "rows": int(self._starts[-1]), "done": done}).encode()

    def _found(self, nbytes: int) -> int:
        """Return how many windows an earlier run of the same job has left in a whole file."""
        try:
            done = int(json.loads(self._note.read_bytes())["done"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        same = self._path.is_file() and self._note.read_bytes() == self._facts(done)
        same = same and self._path.stat().st_size == nbytes
        return done if same and 0 <= done <= len(self._text.windows) else 0

    def _write(self, window: int, states: Tensor) -> None:
        self._rows[self._place(window)] = states.contiguous().view(torch.uint8).numpy()

    def _read(self, window: int) -> Tensor:
        return torch.from_numpy(self._rows[self._place(window)].copy()).view(self._arithmetic)

    def _place(self, window: int) -> slice:
        return slice(int(self._starts[window]), int(self._starts[window + 1]))


def batches(count: int, size: int, first: int = 0) -> Iterator[Sequence[int]]:
    """Yield the numbers of `count` windows from `first` on, `size` at a time."""
    for start in range(first, first + count, size):
        yield range(start, min(start + size, first + count))
