"""Whom to ask a draft for, for how many tokens, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile

from fewbit.engine.request import Generation, Speculation
from fewbit.sampling import Drawn
from fewbit.speculate.drafts import DraftQuery
from fewbit.speculate.length import DraftLength, StepCosts
from fewbit.speculate.verifier import verifier_for

MEASURED_PLAIN_STEPS = 2
"""A generation's first decoding steps run without a draft, so that its plain speed is known."""


class Drafting:
    """An engine's draft, and what drafted rows cost.

    Args:
        speculation: the draft.
        vocabulary: of the target; it cannot run ids from here on.
        clock: seconds.
    """

    def __init__(
        self, speculation: Speculation, vocabulary: int, clock: Callable[[], float]
    ) -> None:
        self.speculation = speculation
        self.costs = StepCosts()
        self._vocabulary = vocabulary
        self._clock = clock

    def length(self) -> DraftLength:
        """Return what chooses a new sequence's draft lengths."""
        return DraftLength(self.speculation.longest)

    def propose(self, decoding: Iterable[Generation]) -> dict[int, tuple[int, ...]]:
        """Ask the draft for every sequence whose draft pays; by generation number."""
        asked = [(g, length) for g in decoding if (length := self._wanted(g)) > 0]
        if not asked:
            return {}
        begun = self._clock()
        proposals = self.speculation.draft.propose([_query(g, length) for g, length in asked])
        seconds = self._clock() - begun
        if drafted := sum(len(proposal.tokens) for proposal in proposals):
            self.costs.observe_draft(drafted, seconds)
        found = {}
        for (generation, length), proposal in zip(asked, proposals, strict=True):
            generation.meter.draft += seconds
            found[generation.number] = self._runnable(proposal.tokens[:length])
        return found

    def learn(
        self, generation: Generation, draft: tuple[int, ...], drawn: Drawn, taken: int, rows: int
    ) -> None:
        """Count how a draft fared; what lies beyond the generation's end counts for nothing.

        Args:
            generation: whose draft it was.
            draft: what was verified.
            drawn: what the target drew along it.
            taken: how many of those tokens the generation took.
            rows: of a step in which everything that decodes does so without drafts.
        """
        agreed = len(drawn.tokens) - (0 if drawn.fault else 1)
        tested, accepted = min(taken, len(draft)), min(taken, agreed)
        generation.meter.count_block(len(draft), tested, accepted, taken)
        if generation.length is not None:
            generation.length.observe(
                generation.generated,
                tested=tested,
                accepted=accepted,
                row_cost=self.costs.row_cost(rows),
            )

    def _runnable(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens before the first that the target does not know, or could never draw."""
        return tuple(takewhile(lambda token: 0 <= token < self._vocabulary, tokens))

    def _wanted(self, generation: Generation) -> int:
        """Return how many drafted tokens can be of use now."""
        if generation.length is None or generation.meter.plain_steps < MEASURED_PLAIN_STEPS:
            return 0
        wanted = generation.length.next_length(generation.generated)
        count, context = len(generation.tokens), self.speculation.draft.context
        if context is not None and count + wanted > context:
            generation.draft_off = (
                f"the draft's context of {context} tokens is full; the rest was generated "
                "without it"
            )
            return 0
        wanted = min(wanted, generation.most - count)
        if self.speculation.draft.shares_store:
            return _with_pages(generation, wanted)
        return wanted


def _query(generation: Generation, length: int) -> DraftQuery:
    return DraftQuery(
        sequence=generation.number,
        tokens=generation.tokens,
        length=length,
        sampler=generation.sampler,
        verifier=verifier_for(generation.request.params),
        pages=generation.table.array,
        computed=generation.computed,
    )


def _with_pages(generation: Generation, length: int) -> int:
    """Hold pages for a draft of `length` tokens; return 0 where the store is short of them."""
    end = len(generation.tokens) + length
    if length <= 0 or not generation.table.can_grow(end):
        return 0
    generation.table.grow(end)
    return length
