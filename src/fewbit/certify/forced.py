"""Drafts that are always asked, for as many tokens as can be of use, and sometimes wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation
from fewbit.engine.served import Drawing, Served
from fewbit.errors import FewbitError
from fewbit.keyed_random import Purpose, uniform
from fewbit.records.certificate import Acceptance
from fewbit.sampling import Branch, Drawn, TokenLogprob, sample_blocks, tree_rows
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.drafts import Draft, DraftQuery, Proposal

WRONG = 1 / 3
"""The share of a disturbed draft's tokens that are replaced."""

Said = tuple[tuple[int, ...], tuple[TokenLogprob, ...]]
"""The tokens of an output and their log-probabilities."""


class Tally:
    """Draws as the engine does, and counts how drafted tokens fare."""

    def __init__(self) -> None:
        self._proposed = self._tested = self._accepted = 0

    def draw(self, logits: Any, blocks: Sequence[Any], **options: Any) -> list[Drawn]:
        """Draw as `sample_blocks` does."""
        found = sample_blocks(logits, blocks, **options)
        for block, drawn in zip(blocks, found, strict=True):
            accepted = len(drawn.tokens) - (drawn.fault is None)
            self._proposed += tree_rows(block.draft, block.branches)
            self._tested += min(accepted + 1, len(block.draft))
            self._accepted += accepted
        return found

    @property
    def acceptance(self) -> Acceptance:
        """What was counted."""
        return Acceptance(proposed=self._proposed, tested=self._tested, accepted=self._accepted)


class Disturbed:
    """A draft of which some tokens are replaced, and that proposes any where it has none.

    Exact speculation says the same whatever is proposed, so this one leads through rejections at
    every position. For rules that only compare (`Verifier.MATCH`): a replaced token was not drawn.
    """

    def __init__(self, draft: Draft, vocabulary: int) -> None:
        self._draft = draft
        self._vocabulary = vocabulary
        self.name = f"{draft.name}, disturbed"
        self.context = draft.context
        self.shares_store = draft.shares_store
        self.pending = draft.pending
        self.release = draft.release
        self.parts = (draft,)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return disturbed proposals, always of the length asked for."""
        proposals = self._draft.propose(queries)
        found = []
        for query, proposal in zip(queries, proposals, strict=True):
            chain = tuple(self._token(query, proposal.tokens, j) for j in range(query.length))
            branches = tuple(self._branches(query, chain, proposal.tokens))
            found.append(Proposal(chain, branches=branches))
        return found

    def _branches(
        self, query: DraftQuery, chain: Sequence[int], proposed: Sequence[int]
    ) -> Iterator[Branch]:
        """Yield branches as asked for, of which the first says what the draft said."""
        for depth, count in enumerate(query.siblings[: len(chain)]):
            honest = proposed[depth : depth + query.reach]
            used = {chain[depth]}
            for rank in range(count):
                tokens = honest if honest and honest[0] not in used else ()
                first = (chain[depth] + 1 + rank) % self._vocabulary
                if not tokens and first not in used:
                    tokens = (first, *proposed[depth + 1 : depth + query.reach])
                if tokens:
                    used.add(tokens[0])
                    yield Branch(depth, tuple(tokens))

    def _token(self, query: DraftQuery, proposed: Sequence[int], j: int) -> int:
        position = len(query.tokens) + j
        wrong = uniform(query.sequence, 0, position, Purpose.ACCEPT) < WRONG
        if j < len(proposed) and not wrong:
            return proposed[j]
        return int(uniform(query.sequence, 0, position, Purpose.DRAFT) * self._vocabulary)


def said(
    served: Served,
    requests: Sequence[Request],
    speculation: Speculation | None = None,
    tally: Tally | None = None,
) -> list[Said]:
    """Serve requests together and return what each said.

    Raises:
        FewbitError: a request failed.
    """
    drawing = Drawing() if tally is None else Drawing(draw=tally.draw)
    engine = Engine(served, speculation, clock=stopped, drawing=drawing)
    found: list[tuple[list[int], list[TokenLogprob]]] = [([], []) for _ in requests]
    for output in engine.generate(requests):
        _raise(output.fault)
        found[output.request][0].extend(output.tokens)
        found[output.request][1].extend(output.logprobs)
    return [(tuple(tokens), tuple(logprobs)) for tokens, logprobs in found]


def stopped() -> float:
    """Return 0: no step seems slow, so prompts are cut, and drafts asked, the same in every run."""
    return 0.0


def forced(draft: Draft, longest: int, branches: int = 0) -> Speculation:
    """Return the draft as the engine takes it, asked at every step, whatever it costs."""
    return Speculation(draft, longest, branches=branches, control=FixedLengths)


def _raise(fault: FewbitError | None) -> None:
    if fault is not None:
        raise fault
