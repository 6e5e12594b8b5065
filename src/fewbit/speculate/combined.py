"""Two drafts as one: the second proposes where the first has nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fewbit.speculate.drafts import Draft, DraftQuery, Proposal


class CombinedDraft:
    """Asks a draft that costs next to nothing first, and another only where that has nothing.

    Args:
        first: such as an n-gram or suffix draft.
        second: such as a model. Sequences that its context does not hold are not its business.
    """

    context = None

    def __init__(self, first: Draft, second: Draft) -> None:
        self._first = first
        self._second = second
        self.parts = (first, second)
        self.name = f"{first.name}+{second.name}"
        self.shares_store = first.shares_store or second.shares_store
        self._over: set[int] = set()  # sequences for which the second has nothing more

    def pending(self, query: DraftQuery) -> int:
        """Return what the draft that would propose has to read first."""
        if self._first.propose([replace(query, length=1)])[0].tokens:
            return self._first.pending(query)
        return self._second.pending(query) if self._fits(query) else 0

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return the first draft's proposals, and the second's where they are empty."""
        found = self._first.propose(queries)
        left = [i for i, p in enumerate(found) if not p.tokens and self._fits(queries[i])]
        if left:
            for i, proposal in zip(
                left, self._second.propose([queries[i] for i in left]), strict=True
            ):
                if proposal.ended:
                    self._over.add(queries[i].sequence)
                found[i] = replace(proposal, ended="")
        return found

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        self._first.release(sequence)
        self._second.release(sequence)
        self._over.discard(sequence)

    def _fits(self, query: DraftQuery) -> bool:
        """Whether the second may be asked: it can go on, and its context holds the sequence."""
        if query.sequence in self._over:
            return False
        context = self._second.context
        return context is None or len(query.tokens) + query.length <= context
