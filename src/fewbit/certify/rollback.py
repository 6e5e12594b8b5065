"""Keys and values after rejections and rollbacks, against those of one pass over the same tokens.

Whole pages of verified tokens are compared, every byte of every layer: there a rejected token's row
must have been written over by that of the token that took its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fewbit.certify.cases import PROMPTS, SAMPLED
from fewbit.certify.forced import Disturbed, Tally, forced, said
from fewbit.certify.parts import Parts
from fewbit.engine.loaded import LoadedModel
from fewbit.engine.request import Request
from fewbit.engine.stop import StopCondition
from fewbit.model.pieces import Piece, step_of
from fewbit.records.certificate import CacheCase
from fewbit.runtime.executor import Executor
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.reference import ReferenceExecutor
from fewbit.runtime.step import PAGE, StepInput
from fewbit.speculate.drafts import Draft, DraftQuery, Proposal, parts_of, reach_of
from fewbit.speculate.fresh import fresh
from fewbit.speculate.head_draft import HeadDraft
from fewbit.speculate.model_draft import ModelDraft

PAGES = 2
"""Whole pages to fill, counted from the page in which the prompt ends."""

PROMPT = "rewrite"

DRAFT_TOKENS = (1 + PAGES) * PAGE
"""Generated beside a draft with a store of its own."""

_FEW = 16
"""Ids below this are tokens of every model."""


class WrittenStore:
    """An executor that notes which token's row its one sequence wrote first at each position.

    Of a tree's rows those of the chain count as written before those of the branches.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.first: dict[int, int] = {}
        self.table: NDArray[np.int32] = np.empty(0, np.int32)

    @property
    def pages(self) -> int:
        """Pages in the KV store."""
        return self._executor.pages

    def step(self, step: StepInput) -> NDArray[np.float32]:
        """Run the step."""
        for span in step.spans:
            for i in range(span.count):
                self.first.setdefault(span.position + i, int(step.tokens[span.start + i]))
        self.table = step.spans[0].pages.copy()
        return self._executor.step(step)


def check_caches(
    target: LoadedModel, draft: Draft, longest: int, branches: int = 0, parts: Parts | None = None
) -> tuple[CacheCase, ...]:
    """Compare the store after greedy and sampled runs, along the draft and a disturbed one.

    With branches the disturbed one comes once more, as trees.
    """
    parts, names = parts or Parts(), list(SAMPLED)

    def disturbed() -> Draft:
        return Disturbed(fresh(draft), target.vocabulary)

    runs = [(names[0], lambda: fresh(draft), 0), (names[-1], disturbed, 0)]
    if branches and reach_of(draft):
        runs.append((names[0], disturbed, branches))
    return tuple(
        parts.once(
            "caches",
            f"{params}, {longest} at once" + (f" and {own} branches" if own else ""),
            CacheCase,
            partial(check_cache, target, opened, params, longest, own),
        )
        for params, opened, own in runs
    )


def check_draft_caches(
    target: LoadedModel, draft: Draft, longest: int, parts: Parts | None = None
) -> tuple[CacheCase, ...]:
    """Compare the stores of drafts that have one, after a run with rejections, with a fresh pass.

    Those of a model and of a head; nothing for a draft without a store of its own.
    """
    parts = parts or Parts()
    own = [part for part in parts_of(draft) if isinstance(part, ModelDraft | HeadDraft)]
    return tuple(
        parts.once(
            "draft caches",
            f"{part.name}, {longest} at once",
            CacheCase,
            partial(_draft_cache, target, part, longest),
        )
        for part in own
    )


def _draft_cache(target: LoadedModel, own: ModelDraft | HeadDraft, longest: int) -> CacheCase:
    name = list(SAMPLED)[-1]
    prompt = target.text_prompt(PROMPTS[PROMPT])
    # Runs of the same requests before may have left there just what belongs there: with another
    # text in the pages, a row that is never written shows.
    positions = min(len(prompt) + DRAFT_TOKENS, own.context)
    own.anew().spoil([token % _FEW for token in range(positions)])
    draft = own.anew()
    left = _LeftHead(draft) if isinstance(draft, HeadDraft) else _Left(draft, draft.beside_fresh)
    request, tally = Request(prompt, SAMPLED[name], StopCondition(DRAFT_TOKENS)), Tally()
    said(target.served, [request], forced(left, longest), tally)
    return CacheCase(
        params=name,
        draft=f"{draft.name}, the draft's own store",
        longest=longest,
        pages=len(left.pairs),
        bytes=sum(len(old) for old, _ in left.pairs),
        written_over=tally.acceptance.rejected,
        differing=tuple(i for i, (old, new) in enumerate(left.pairs) if old != new),
    )


class _Left:
    """A draft that looks at what it has of its one sequence before it forgets it.

    `compare` returns its pages beside those of a fresh pass, given the sequence and its tokens.
    """

    def __init__(
        self,
        draft: ModelDraft | HeadDraft,
        compare: Callable[[int, Sequence[int]], list[tuple[bytes, bytes]]],
    ) -> None:
        self._draft = draft
        self._compare = compare
        self._tokens: Sequence[int] = ()
        self.pairs: list[tuple[bytes, bytes]] = []
        self.name = draft.name
        self.context = draft.context
        self.shares_store = draft.shares_store
        self.pending = draft.pending

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return the draft's proposals."""
        for query in queries:
            self._tokens = list(query.tokens)
        return self._draft.propose(queries)

    def release(self, sequence: int) -> None:
        """Compare, and forget."""
        if self._tokens:
            self.pairs = self._compare(sequence, self._tokens)
        self._draft.release(sequence)


class _LeftHead(_Left):
    """A head that does so: it keeps the states that it was handed, for the fresh pass."""

    def __init__(self, draft: HeadDraft) -> None:
        super().__init__(
            draft, lambda sequence, tokens: draft.beside_fresh(sequence, tokens, self._states)
        )
        self.width = draft.width
        self._watch = draft.watch
        self._states = np.empty((0, draft.width), np.float32)

    def watch(self, sequence: int, first: int, states: NDArray[np.float32]) -> None:
        """Take the states of a sequence's positions from `first` on, float32 [rows, width]."""
        self._states = np.concatenate([self._states[:first], states])
        self._watch(sequence, first, states)


def cache_tokens(prompt: int, longest: int, branches: int = 0) -> int:
    """Return how many tokens behind a prompt of that many fill the pages to be compared.

    A last step with branches may leave its page to one of them, so that text goes on behind it.
    """
    whole = (prompt // PAGE + PAGES) * PAGE + 1 - prompt
    return whole + (longest + 1 if branches else 0)


def check_cache(
    target: LoadedModel,
    opened: Callable[[], Draft],
    params: str,
    longest: int,
    branches: int = 0,
) -> CacheCase:
    """Run one request along a draft and compare the whole pages that it leaves."""
    draft = opened()
    prompt = target.text_prompt(PROMPTS[PROMPT])
    count = cache_tokens(len(prompt), longest, branches)
    store = WrittenStore(target.runner.executor)
    request = Request(prompt, SAMPLED[params], StopCondition(count))
    served = replace(target.served, executor=store)
    ((generated, _),) = said(served, [request], forced(draft, longest, branches))
    tokens = [*prompt, *generated]
    whole = (len(tokens) - 1) // PAGE
    kept = tokens[: whole * PAGE]
    fresh = _fresh_pages(target, kept, store.table)
    executor = target.runner.executor
    assert isinstance(executor, NativeExecutor | ReferenceExecutor)
    read = executor.page
    pairs = [(read(int(old)), read(int(new))) for old, new in zip(store.table, fresh, strict=False)]
    return CacheCase(
        params=params,
        draft=draft.name,
        longest=longest,
        branches=branches,
        pages=whole,
        bytes=sum(len(old) for old, _ in pairs),
        written_over=sum(store.first[i] != token for i, token in enumerate(kept)),
        differing=tuple(i for i, (old, new) in enumerate(pairs) if old != new),
    )


def _fresh_pages(
    target: LoadedModel, tokens: list[int], taken: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Run tokens once, in pages that nobody has, and return those."""
    executor = target.runner.executor
    free = [page for page in range(executor.pages) if page not in taken]
    pages = np.array(free[: len(tokens) // PAGE], np.int32)
    ids, nothing = np.array(tokens, np.int32), np.empty(0, np.int32)
    executor.step(step_of([Piece(ids, 0, pages, nothing)]))
    return pages
