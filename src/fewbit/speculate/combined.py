"""Two drafts as one: the second proposes where the first has nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fewbit.speculate.drafts import Draft, DraftQuery, Proposal


class CombinedDraft:
    """Asks a draft that costs next to nothing first, and another only where that has nothing.

    An engine asks its parts by themselves (`able`), so that what they cost and how they fare is
    known of each.

    Args:
        first: such as an n-gram or suffix draft.
        second: such as a model. Sequences that its context does not hold are not its business.
    """

    context = None

    def __init__(self, first: Draft, second: Draft) -> None:
        self.parts = (first, second)
        self.name = f"{first.name}+{second.name}"
        self.shares_store = first.shares_store or second.shares_store
        self._over: set[int] = set()  # sequences for which the second has nothing more

    def able(self, query: DraftQuery) -> tuple[int, ...]:
        """Return which parts may be asked: the first only where it has something.

        That it has follows from the tokens so far, so choosing by it biases nothing.
        """
        first, _ = self.parts
        return (0, 1) if first.propose([replace(query, length=1)])[0].tokens else (1,)

    def pending(self, query: DraftQuery) -> int:
        """Return what the draft that would propose has to read first."""
        part = self.able(query)[0]
        return self.parts[part].pending(query) if part == 0 or self._fits(query) else 0

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return the first draft's proposals, and the second's where they are empty."""
        first, second = self.parts
        found = first.propose(queries)
        left = [i for i, p in enumerate(found) if not p.tokens and self._fits(queries[i])]
        if left:
            for i, proposal in zip(left, second.propose([queries[i] for i in left]), strict=True):
                if proposal.ended:
                    self._over.add(queries[i].sequence)
                found[i] = replace(proposal, ended="")
        return found

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        for part in self.parts:
            part.release(sequence)
        self._over.discard(sequence)

    def _fits(self, query: DraftQuery) -> bool:
        """Whether the second may be asked: it can go on, and its context holds the sequence."""
        if query.sequence in self._over:
            return False
        context = self.parts[1].context
        return context is None or len(query.tokens) + query.length <= context


def asked_parts(draft: Draft) -> tuple[Draft, ...]:
    """Return the drafts that are asked by themselves: of a combined one its parts, or it alone."""
    return draft.parts if isinstance(draft, CombinedDraft) else (draft,)


def able_parts(draft: Draft, query: DraftQuery) -> tuple[int, ...]:
    """Return which of them may be asked for a sequence, the cheapest first."""
    return draft.able(query) if isinstance(draft, CombinedDraft) else (0,)
