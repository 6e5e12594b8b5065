"""A smaller model as a draft, with a KV store of its own.

It reads what the target has verified and draws on from there, all sequences together, one step a
token. Between two calls its own drafted tokens lie in its store; those that the target did not
accept are rolled back at the next call, by comparing them with what the sequence became.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fewbit.cache.pages import PageTable
from fewbit.runtime.executor import Executor
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.reference import ReferenceExecutor
from fewbit.runtime.step import PAGE
from fewbit.sampling import SamplingThreads
from fewbit.speculate.drafts import DraftQuery, Proposal
from fewbit.speculate.drawing import Drawing, KeptRows, draw_each
from fewbit.speculate.own_store import (
    KEEPS_UP,
    READ_ROWS,
    OwnStore,
    Placed,
    beside,
    portions,
    step_input,
)
from fewbit.tokens.mapping import TokenMap


@dataclass(frozen=True, eq=False)
class DraftModel:
    """A model made ready to draft, and what its tokens are to the target.

    It takes at most `context` positions of a sequence, and never proposes the target's ids from
    `vocabulary` on.
    """

    name: str
    executor: Executor
    context: int
    vocabulary: int
    ends: frozenset[int] = frozenset()
    """The target's ids after which a text is over."""
    tokens: TokenMap | None = None
    """How it reads the target's tokens; None where ids pass unchanged."""
    support: NDArray[np.int32] | None = None
    """int32 [n] ascending, the target's ids that it can propose; None for those of its logits."""
    columns: NDArray[np.int32] | None = None
    """int32 [n], the column of its logits for each; None where they lie in that order."""
    threads: SamplingThreads | None = None


@dataclass(eq=False, slots=True)
class _Sequence:
    """What the draft has of a sequence: its tokens as the draft reads them, and their keys.

    In the store lie the keys of the first `computed` of them, all verified, and behind them those
    of `drafted`, the draft's own ids.
    """

    table: PageTable
    used: int = 0
    """The call that asked for it last."""
    computed: int = 0
    drafted: list[int] = field(default_factory=list)
    mapped: list[int] = field(default_factory=list)
    read: int = 0
    """How many of the target's tokens `mapped` stands for."""
    ended: str = ""
    """Why nothing more is drafted for it: its logits were not finite."""

    def text(self, tokens: Sequence[int], mapping: TokenMap | None) -> Sequence[int]:
        """Return the sequence as the draft reads it."""
        if mapping is None:
            return tokens
        if not self.read:
            self.mapped = list(mapping.beginning)
        self.mapped += mapping.read(tokens[self.read :])
        self.read = len(tokens)
        return self.mapped

    def settle(self, text: Sequence[int]) -> None:
        """Count drafted tokens that the sequence took as computed, and forget the others."""
        for drafted, token in zip(self.drafted, text[self.computed :], strict=False):
            if drafted != token:
                break
            self.computed += 1
        self.computed = min(self.computed, len(text) - 1)
        self.drafted.clear()
        self.table.roll_back(self.computed)
        self.table.share(text, self.computed)
        if len(text) - self.computed > KEEPS_UP:
            self.computed = self.table.reuse(text, self.computed)

    def forget(self) -> None:
        """Let all pages go; the text is read again when it is asked for."""
        self.table.roll_back(0)
        self.computed = 0
        self.drafted.clear()


@dataclass(eq=False, slots=True)
class _Run:
    """A query while it is answered."""

    drawing: Drawing
    state: _Sequence
    text: Sequence[int]
    """The query's tokens as the draft reads them."""

    @property
    def position(self) -> int:
        """The first of the draft's positions that is not in the store."""
        return self.state.computed + len(self.state.drafted)

    def unread(self) -> int:
        """How many tokens are still to be run."""
        return len(self.text) + len(self.drawing.tokens) - self.position

    def take(self, count: int, mapping: TokenMap | None) -> Sequence[int]:
        """Return the next tokens to run, as the draft reads them, and count them as run."""
        drawn = self.drawing.tokens
        if drawn:
            own = drawn[-1] if mapping is None else mapping.read(drawn[-1:])[0]
            self.state.drafted.append(own)
            return (own,)
        begin = self.state.computed
        self.state.computed += count
        return self.text[begin : begin + count]


class ModelDraft:
    """Drafts with a model of its own store; satisfies `speculate.drafts.Draft`.

    A text is read when a draft of it is first asked for, at most `READ_ROWS` tokens a call beside
    the sequences that keep up; until it is read, the proposals are empty. Where pages run out,
    sequences that were not asked for lately are forgotten first, and read again when they are.

    Args:
        model: what drafts; its executor's store is this draft's alone.
        read_rows: rows of texts not read yet in one call, at least 1.
    """

    reach = 1
    shares_store = False

    def __init__(self, model: DraftModel, *, read_rows: int = READ_ROWS) -> None:
        self._model = model
        self._read_rows = read_rows
        self._store = OwnStore(model.executor.pages, _Sequence)
        self._rows = KeptRows()

    def anew(self) -> ModelDraft:
        """Return a draft on the same store that knows nothing; only one of the two is then used."""
        return ModelDraft(self._model, read_rows=self._read_rows)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def context(self) -> int:
        """How many positions of a sequence the draft can look at."""
        return self._model.context

    @property
    def pages_held(self) -> int:
        """Pages that sequences hold now."""
        return self._store.held

    def pending(self, query: DraftQuery) -> int:
        """Return how many tokens before the last must be read before it could propose."""
        state = self._store.of(query.sequence)
        text = state.text(query.tokens, self._model.tokens)
        if not state.computed:
            state.computed = state.table.reuse(text, 0)
        return max(len(text) - 1 - state.computed - len(state.drafted), 0)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return one proposal for each query; empty where its text is not read yet.

        Its probabilities are valid until the next call.
        """
        self._store.call()
        self._rows.reset()
        runs = [self._begun(query) for query in queries]
        active = self._read([run for run in runs if run is not None])
        while active:
            active = self._step([(run, 1) for run in active])
        support = self._model.support
        return [Proposal(()) if run is None else _proposal(run, support) for run in runs]

    def beside_fresh(self, sequence: int, tokens: Sequence[int]) -> list[tuple[bytes, bytes]]:
        """Return each whole page that is read of a sequence, and what one pass over it writes.

        For certificates: rows of drafted tokens that were not accepted must have been written over.

        Args:
            sequence: which.
            tokens: all of them, the target's ids.

        Raises:
            RequestError: the store has no room for the pass.
        """
        state, executor = self._store.of(sequence), self._model.executor
        text = state.text(tokens, self._model.tokens)
        whole = state.computed // PAGE
        fresh = self._store.table()
        self._write(text[: whole * PAGE], fresh)
        assert isinstance(executor, NativeExecutor | ReferenceExecutor)
        return beside(state, fresh, whole, executor.page)

    def spoil(self, tokens: Sequence[int]) -> None:
        """Write the rows of another text, its own ids, where the next sequence's pages will lie."""
        table = self._store.table()
        self._write(tokens, table)
        table.roll_back(0)

    def _write(self, text: Sequence[int], table: PageTable) -> None:
        """Write the rows of a text in one pass over it."""
        table.grow(len(text))
        for at in range(0, len(text), self._read_rows):
            placed = Placed(text[at : at + self._read_rows], at, table.array)
            self._model.executor.step(step_input([placed], [False]))

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        self._store.release(sequence)

    def _begun(self, query: DraftQuery) -> _Run | None:
        """Return the query with its store settled and room in it; None where it has no draft."""
        state = self._store.asked(query.sequence)
        text = state.text(query.tokens, self._model.tokens)
        state.settle(text)
        length = min(query.length, self._model.context - len(text) + 1)
        if state.ended or length < 1:
            return None
        # The last drafted token is never run.
        if not self._store.hold(state, len(text) + length - 1):
            return None
        return _Run(Drawing.begun(query, length), state, text)

    def _read(self, runs: list[_Run]) -> list[_Run]:
        """Run what is unread of each, and return those that drew a token and want another."""
        work = portions(runs, lambda run: run.unread(), self._read_rows)
        return self._step(work) if work else []

    def _step(self, work: Sequence[tuple[_Run, int]]) -> list[_Run]:
        """Run the next tokens of each, draw where a text is read; return who wants another."""
        model = self._model
        whole = [count == run.unread() for run, count in work]
        rows = [_placed(run, count, model.tokens) for run, count in work]
        logits = model.executor.step(step_input(rows, whole))
        runs = [run for (run, _), done in zip(work, whole, strict=True) if done]
        ended = draw_each(
            [run.drawing for run in runs],
            logits,
            self._rows,
            vocabulary=model.vocabulary,
            support=model.support,
            columns=model.columns,
            threads=model.threads,
        )
        for run, why in zip(runs, ended, strict=True):
            run.state.ended = why
        return [run for run in runs if run.drawing.wants_more(model.ends)]


def _proposal(run: _Run, support: NDArray[np.int32] | None) -> Proposal:
    return run.drawing.proposal(support, run.state.ended)


def _placed(run: _Run, count: int, mapping: TokenMap | None) -> Placed:
    """Return the next rows to run of a query, and count them as run."""
    position = run.position
    return Placed(run.take(count, mapping), position, run.state.table.array)
