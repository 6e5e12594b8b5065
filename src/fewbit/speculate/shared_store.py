"""Drafting with the target itself, cheaper, over the target's own KV store.

Such a draft has no cache and reads no prompt: the target's keys are there. It runs the last token
and then its own, one after another, and writes their keys behind the sequence's, where the target
overwrites them when it verifies. So nothing is rolled back, and a draft may be asked at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fewbit.records.kernels import KernelRecord
from fewbit.runtime.executor import Executor
from fewbit.runtime.step import Span, StepInput
from fewbit.sampling import SamplingThreads
from fewbit.speculate.drafts import DraftQuery, Proposal
from fewbit.speculate.drawing import Drawing, KeptRows, draw_each


class SharedStoreDraft:
    """Drafts with an executor over the target's store; satisfies `speculate.drafts.Draft`.

    Args:
        name: for records.
        executor: made beside the target's.
        vocabulary: ids from here on are padding of the head, never drafted.
        ends: ids after which a text is over.
        threads: draw for several sequences at once.
        kernels: of its matrices, for records.
    """

    reach = 1
    shares_store = True
    context = None

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        name: str,
        executor: Executor,
        vocabulary: int,
        threads: SamplingThreads | None = None,
        kernels: tuple[KernelRecord, ...] = (),
        ends: frozenset[int] = frozenset(),
    ) -> None:
        self.name = name
        self.kernels = kernels
        self._executor = executor
        self._vocabulary = vocabulary
        self._threads = threads
        self._ends = ends
        self._rows = KeptRows()

    def pending(self, query: DraftQuery) -> int:
        """Return 0: the target has read everything before the last token."""
        return 0

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return one proposal for each query, drawn token by token, all sequences together.

        Their probabilities are valid until the next call.
        """
        self._rows.reset()
        drawings = [Drawing.begun(query, query.length) for query in queries]
        while active := [drawing for drawing in drawings if drawing.wants_more(self._ends)]:
            draw_each(
                active,
                self._executor.step(_step_input(active)),
                self._rows,
                vocabulary=self._vocabulary,
                threads=self._threads,
            )
        return [drawing.proposal() for drawing in drawings]

    def release(self, sequence: int) -> None:
        """Do nothing: nothing is kept of a sequence."""


def _step_input(drawings: Sequence[Drawing]) -> StepInput:
    """Return the step that runs the next tokens of each and gives the logits of the last."""
    tokens: list[int] = []
    wanted: list[int] = []
    spans: list[Span] = []
    for drawing in drawings:
        query, drawn, start = drawing.query, drawing.tokens, len(tokens)
        position = len(query.tokens) + len(drawn) - 1 if drawn else query.computed
        tokens += drawn[-1:] or query.tokens[query.computed :]
        spans.append(Span(start, len(tokens) - start, position, query.pages))
        wanted.append(len(tokens) - 1)
    return StepInput(np.array(tokens, np.int32), tuple(spans), np.array(wanted, np.int32))
