"""Drafting with the target itself, cheaper, over the target's own KV store.

Such a draft has no cache and reads no prompt: the target's keys are there. It runs the last token
and then its own, one after another, and writes their keys behind the sequence's, where the target
overwrites them when it verifies. So nothing is rolled back, and a draft may be asked at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fewbit.records.kernels import KernelRecord
from fewbit.runtime.executor import Executor
from fewbit.runtime.step import Span, StepInput
from fewbit.sampling import DraftRow, SamplingThreads, TokenSampler, draw_proposals
from fewbit.speculate.combined import CombinedDraft
from fewbit.speculate.drafts import Draft, DraftQuery, Proposal


@dataclass(eq=False, slots=True)
class _Run:
    """A query while it is answered."""

    query: DraftQuery
    sampler: TokenSampler
    drawn: list[int] = field(default_factory=list)
    drawn_from: NDArray[np.float32] | None = None
    """[length, n] as far as it was drawn; None where the target's own numbers were used."""
    faulty: bool = False

    @property
    def wants_more(self) -> bool:
        """Whether another token is to be drawn."""
        return not self.faulty and len(self.drawn) < self.query.length

    def next_tokens(self) -> Sequence[int]:
        """Return the tokens to run before the next can be drawn."""
        return self.drawn[-1:] or self.query.tokens[self.query.computed :]

    @property
    def position(self) -> int:
        """Where the first of them stands."""
        tokens = self.query.tokens
        return len(tokens) + len(self.drawn) - 1 if self.drawn else self.query.computed

    def row(self, row: int, columns: int) -> DraftRow:
        """Return what is to be drawn from a row of as many logits."""
        start, count = len(self.query.tokens), len(self.drawn)
        if self.query.verifier.couples:
            return DraftRow(self.sampler, row, start + count, start)
        if self.drawn_from is None:
            self.drawn_from = np.empty((self.query.length, columns), np.float32)
        return DraftRow(self.sampler, row, start + count, start, self.drawn_from[count])

    def proposal(self) -> Proposal:
        """Return what was drawn."""
        count = len(self.drawn)
        known = None if self.drawn_from is None else self.drawn_from[:count]
        return Proposal(tuple(self.drawn), known)


class SharedStoreDraft:
    """Drafts with an executor over the target's store; satisfies `speculate.drafts.Draft`.

    Args:
        name: for records.
        executor: made beside the target's.
        vocabulary: ids from here on are padding of the head, never drafted.
        threads: draw for several sequences at once.
        kernels: of its matrices, for records.
    """

    shares_store = True
    context = None

    def __init__(
        self,
        name: str,
        executor: Executor,
        vocabulary: int,
        threads: SamplingThreads | None = None,
        kernels: tuple[KernelRecord, ...] = (),
    ) -> None:
        self.name = name
        self.kernels = kernels
        self._executor = executor
        self._vocabulary = vocabulary
        self._threads = threads

    def pending(self, query: DraftQuery) -> int:
        """Return 0: the target has read everything before the last token."""
        return 0

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return one proposal for each query, drawn token by token, all sequences together."""
        runs = [_Run(query, query.sampler.fork()) for query in queries]
        while active := [run for run in runs if run.wants_more]:
            self._step(active)
        return [run.proposal() for run in runs]

    def release(self, sequence: int) -> None:
        """Do nothing: nothing is kept of a sequence."""

    def _step(self, runs: Sequence[_Run]) -> None:
        """Run the next tokens of each and draw one."""
        logits = self._executor.step(_step_input(runs))
        rows = [run.row(row, logits.shape[1]) for row, run in enumerate(runs)]
        found = draw_proposals(logits, rows, vocabulary=self._vocabulary, threads=self._threads)
        for run, drawn in zip(runs, found, strict=True):
            run.faulty = drawn.fault is not None
            if not run.faulty:
                run.drawn.append(drawn.token)


def kernels_of(draft: Draft) -> tuple[KernelRecord, ...]:
    """Return the kernels of a draft over the target's store, or of such a part of a draft."""
    if isinstance(draft, CombinedDraft):
        return tuple(kernel for part in draft.parts for kernel in kernels_of(part))
    return draft.kernels if isinstance(draft, SharedStoreDraft) else ()


def _step_input(runs: Sequence[_Run]) -> StepInput:
    """Return the step that runs the next tokens of each and gives the logits of the last."""
    tokens: list[int] = []
    wanted: list[int] = []
    spans: list[Span] = []
    for run in runs:
        start = len(tokens)
        tokens += run.next_tokens()
        spans.append(Span(start, len(tokens) - start, run.position, run.query.pages))
        wanted.append(len(tokens) - 1)
    return StepInput(np.array(tokens, np.int32), tuple(spans), np.array(wanted, np.int32))
