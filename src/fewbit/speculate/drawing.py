"""Drawing a block's tokens from a draft's logits, one after another, for several sequences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fewbit.sampling import Branch, Drafted, DraftRow, SamplingThreads, TokenSampler, draw_proposals
from fewbit.speculate.drafts import DraftQuery, Proposal


class KeptRows:
    """Memory for what tokens are drawn from, kept from call to call.

    Of a vocabulary's width, memory that is new each time costs more than the drawing.
    """

    def __init__(self) -> None:
        self._rows: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self._lent = 0

    def reset(self) -> None:
        """Have what was lent before written over from now on."""
        self._lent = 0

    def take(self, count: int, width: int) -> NDArray[np.float32]:
        """Lend float32 [count, width]."""
        begin, end = self._lent, self._lent + count
        if end > len(self._rows) or width != self._rows.shape[1]:
            self._rows = np.empty((2 * end, width), np.float32)
        self._lent = end
        return self._rows[begin:end]


@dataclass(eq=False, slots=True)
class Drawing:
    """What was drawn for a query so far, of at most `length` tokens."""

    query: DraftQuery
    length: int
    sampler: TokenSampler
    tokens: list[int] = field(default_factory=list)
    """The target's ids."""
    over: bool = False
    """Whether the block ends here: no token could be drawn."""
    drawn_from: NDArray[np.float32] | None = None
    """float32 [length, n]; None for draws coupled with the target's, and before the first."""
    branches: list[Branch] = field(default_factory=list)
    """The other candidates for their positions."""

    @classmethod
    def begun(cls, query: DraftQuery, length: int) -> Drawing:
        """Return the drawing before its first token; the query's own sampler is left alone."""
        return cls(query, length, query.sampler.fork())

    def wants_more(self, ends: Collection[int]) -> bool:
        """Whether another token can be of use: nothing comes after one that ends a text."""
        full = self.over or len(self.tokens) >= self.length
        return not full and not (self.tokens and self.tokens[-1] in ends)

    def row(self, row: int, width: int, kept: KeptRows) -> DraftRow:
        """Return what to draw from a row of logits, with room for what it is drawn from."""
        into = None
        if not self.query.verifier.couples:
            if self.drawn_from is None:
                self.drawn_from = kept.take(self.length, width)
            into = self.drawn_from[len(self.tokens)]
        start, depth = len(self.query.tokens), len(self.tokens)
        wanted = self.query.siblings[depth] if depth < len(self.query.siblings) else 0
        return DraftRow(self.sampler, row, start + depth, start, into, wanted)

    def take(self, drafted: Drafted) -> None:
        """Add what was drawn from a row."""
        depth = len(self.tokens)
        self.tokens.append(drafted.token)
        self.branches += [Branch(depth, (sibling,)) for sibling in drafted.siblings]

    def proposal(self, support: NDArray[np.int32] | None = None, ended: str = "") -> Proposal:
        """Return what was drawn."""
        drawn, branches = tuple(self.tokens), tuple(self.branches)
        if self.drawn_from is None:
            return Proposal(drawn, ended=ended, branches=branches)
        return Proposal(drawn, self.drawn_from[: len(drawn)], support, ended, branches)


def draw_each(  # noqa: PLR0913
    drawings: Sequence[Drawing],
    logits: NDArray[np.float32],
    kept: KeptRows,
    *,
    vocabulary: int,
    support: NDArray[np.int32] | None = None,
    columns: NDArray[np.int32] | None = None,
    threads: SamplingThreads | None = None,
) -> list[str]:
    """Draw one token for each drawing, from its row of the logits.

    Args:
        drawings: of as many sequences as there are rows.
        logits: float32 [rows, n].
        kept: memory for what is drawn from.
        vocabulary: of the target; ids from here on are never drawn.
        support: int32 [m] ascending, the target's ids that can be drawn; None for those of logits.
        columns: int32 [m], the column of the logits for each; None where they lie in that order.
        threads: who draws.

    Returns:
        For each, why the draft cannot go on with the sequence at all; empty where it can.
    """
    if columns is not None:
        logits = np.ascontiguousarray(logits[:, columns])
    width = logits.shape[1]
    draws = [drawing.row(row, width, kept) for row, drawing in enumerate(drawings)]
    found = draw_proposals(logits, draws, support=support, vocabulary=vocabulary, threads=threads)
    ended = [""] * len(drawings)
    for i, (drawing, drafted) in enumerate(zip(drawings, found, strict=True)):
        if drafted.fault is None:
            drawing.take(drafted)
            continue
        drawing.over = True
        if not np.isfinite(logits[i]).all():
            ended[i] = f"the draft cannot go on ({drafted.fault}); the rest has none"
    return ended
