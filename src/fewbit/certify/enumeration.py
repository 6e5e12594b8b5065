"""The whole distribution over a tiny model's outputs, through the engine and by the target alone.

Every path of `paths` is one request to the real engine, over the real executor with its KV store,
with the real draft and the real pipeline; only the random numbers are laid down. The engine's draws
must be those of `judges` at the interval's ends, so that each path has just the probability of its
intervals. The sum over paths by output is what the engine emits; what the target says is multiplied
up from single passes over each beginning. Both are in float64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.certify.judges import Judge, branch_of, draft_rows, honest, target_rows, without
from fewbit.certify.parts import Parts
from fewbit.certify.paths import DisagreementError, NumberPath, all_paths, unused
from fewbit.engine.engine import Engine
from fewbit.engine.loaded import LoadedModel
from fewbit.engine.request import Request, Speculation
from fewbit.engine.served import Drawing
from fewbit.engine.stop import StopCondition
from fewbit.keyed_random import Purpose, block_key
from fewbit.records.certificate import EnumerationCase
from fewbit.records.kept import fingerprint
from fewbit.runtime.executor import Executor
from fewbit.sampling import (
    Block,
    Drawn,
    SamplingParams,
    SamplingThreads,
    ScriptedNumbers,
    TokenSampler,
    sample_blocks,
)
from fewbit.speculate.combined import CombinedDraft
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.drafts import Draft, DraftQuery, Proposal

TOLERANCE = 1e-9
"""Of a probability. Intervals are known to 2^-40 each (9e-13), and a path has about ten."""

Law: TypeAlias = dict[tuple[int, ...], float]
"""The probability of each output."""


@dataclass(frozen=True)
class Enumerated:
    """What is enumerated: one request to a tiny target, with a draft.

    `end` is a token that ends the output, if any.
    """

    name: str
    target: LoadedModel
    draft: Draft
    params: SamplingParams
    described: str
    prompt: tuple[int, ...] = (0, 1, 2, 0, 1)
    length: int = 4
    longest: int = 2
    end: int | None = None
    branches: int = 0

    @property
    def key(self) -> str:
        """What it is kept by: the draft's name and all that is asked."""
        asked = (self.params, self.prompt, self.length, self.longest, self.end, self.branches)
        return f"{self.name} {fingerprint(*asked)[:16]}"

    @property
    def request(self) -> Request:
        """The request."""
        ends = frozenset() if self.end is None else frozenset([self.end])
        return Request(self.prompt, self.params, StopCondition(self.length, ends))


@dataclass(frozen=True)
class Planted:
    """What is put in the place of the engine's own: nothing, or a bug.

    `judge` draws instead of the native code; `rows` says what the target's rows are to it;
    `executor` stands before the target's.
    """

    judge: Judge | None = None
    rows: Callable[[NDArray[np.float32], Block, int], NDArray[np.float64]] = target_rows
    executor: Callable[[Executor], Executor] = lambda executor: executor


NOTHING = Planted()


@dataclass
class Found:
    """What the paths came to."""

    law: Law = field(default_factory=lambda: defaultdict(float))
    paths: int = 0
    rejecting: float = 0.0
    rules: set[str] = field(default_factory=set)


def enumerate_case(case: Enumerated, planted: Planted = NOTHING) -> EnumerationCase:
    """Compare what the engine emits with what the target says."""
    expected = target_law(case)
    found, fault = Found(), ""
    try:
        found = engine_law(case, planted)
    except DisagreementError as error:
        fault = str(error)
    outputs = expected.keys() | found.law.keys()
    return EnumerationCase(
        draft=case.name,
        rule=" and ".join(sorted(found.rules)),
        params=case.described,
        length=case.length,
        longest=case.longest,
        branches=case.branches,
        outputs=len(outputs),
        paths=found.paths,
        rejecting=found.rejecting,
        total=float(sum(found.law.values())),
        distance=max(abs(expected.get(o, 0.0) - found.law.get(o, 0.0)) for o in outputs),
        tolerance=TOLERANCE,
        fault=fault,
    )


def enumerated_once(case: Enumerated, parts: Parts) -> EnumerationCase:
    """Return the comparison where it is kept, or make and keep it."""
    return parts.once("enumeration", case.key, EnumerationCase, partial(enumerate_case, case))


def engine_law(case: Enumerated, planted: Planted = NOTHING) -> Found:
    """Return the distribution of the engine's output, over all paths.

    Raises:
        DisagreementError: a draw came out otherwise than its rule says it must.
    """
    found, run = Found(), _Run(case, planted)
    for path in all_paths(run.walk):
        found.law[run.output] += path.weight
        found.paths += 1
        found.rejecting += path.weight if run.rejected else 0.0
    found.rules = run.rules
    return found


def target_law(case: Enumerated) -> Law:
    """Return the distribution of the target's output, one token after the other."""
    law: Law = {(): 1.0}
    for _ in range(case.length):
        grown: Law = {}
        for output, weight in law.items():
            if case.end is not None and output[-1:] == (case.end,):
                grown[output] = weight
                continue
            for token, chance in enumerate(_next(case, output)):
                if chance > 0:
                    grown[(*output, token)] = weight * float(chance)
        law = grown
    return law


def _next(case: Enumerated, output: Sequence[int]) -> NDArray[np.float64]:
    """Return the target's distribution after an output, from one pass over all that precedes."""
    tokens = [*case.prompt, *output]
    (row,) = next(iter(case.target.runner.score(tokens, first=len(tokens) - 1)))
    sampler = TokenSampler(case.params, seed=0, prompt=case.prompt)
    sampler.remember(output)
    vocabulary = case.target.vocabulary
    return sampler.probabilities(row, vocabulary=vocabulary)[:vocabulary]


class _Run:
    """One path after another through the engine."""

    def __init__(self, case: Enumerated, planted: Planted) -> None:
        self.output: tuple[int, ...] = ()
        self.rejected = False
        self.rules: set[str] = set()
        self._case = case
        self._planted = planted
        self._path = NumberPath()

    def walk(self, path: NumberPath) -> None:
        """Serve the request with a path's numbers."""
        self._path, self.rejected = path, False
        served = self._case.target.served
        numbers = ScriptedNumbers(path.numbers())
        engine = Engine(
            replace(served, executor=self._planted.executor(served.executor)),
            Speculation(
                _followed(self._case, path),
                self._case.longest,
                branches=self._case.branches,
                control=FixedLengths,
            ),
            drawing=Drawing(partial(TokenSampler, numbers=numbers), self._draw),
        )
        tokens: list[int] = []
        for output in engine.generate([self._case.request]):
            tokens += output.tokens
            if output.fault is not None:
                raise output.fault
        self.output = tuple(tokens)
        drafted = {key for key in numbers.asked if key[1] == Purpose.DRAFT}
        if dropped := sorted(drafted - path.decided):
            raise unused(dropped[0])

    def _draw(
        self,
        logits: NDArray[np.float32],
        blocks: Sequence[Block],
        *,
        vocabulary: int,
        threads: SamplingThreads | None,
    ) -> list[Drawn]:
        """Draw for the one sequence, and follow the decisions on the path."""
        if not blocks:
            return []
        (block,) = blocks
        target = self._planted.rows(logits, block, vocabulary)
        drafted = draft_rows(block.probabilities, block.support, len(block.draft), vocabulary)
        planted = self._planted.judge if block.draft else None
        tokens = (planted or honest)(self._path, block, target, drafted)
        self.rejected |= tokens[:-1] != list(block.draft)
        if block.draft:
            self.rules.add(block.verifier.value)
        if planted is not None:
            block.sampler.remember(tokens)
            return [Drawn(tokens, [], branch=branch_of(block, tokens))]
        drawn = sample_blocks(logits, blocks, vocabulary=vocabulary, threads=threads)
        if drawn[0].tokens != tokens:
            raise DisagreementError(
                f"from position {block.position} on the engine drew {drawn[0].tokens} along the "
                f"draft {list(block.draft)}, where the rule gives {tokens}."
            )
        return drawn


def _followed(case: Enumerated, path: NumberPath) -> Draft:
    """Return the draft with its decisions followed; of a combined one, each that it asks."""
    if isinstance(case.draft, CombinedDraft):
        return CombinedDraft(*(_Followed(replace(case, draft=d), path) for d in case.draft.parts))
    return _Followed(case, path)


class _Followed:
    """A draft whose decisions are followed on a path."""

    def __init__(self, case: Enumerated, path: NumberPath) -> None:
        self._draft = case.draft
        self._vocabulary = case.target.vocabulary
        self._path = path
        self.name = case.draft.name
        self.context = case.draft.context
        self.shares_store = case.draft.shares_store
        self.pending = case.draft.pending
        self.release = case.draft.release
        self.parts = (case.draft,)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return the draft's proposals."""
        proposals = self._draft.propose(queries)
        for query, proposal in zip(queries, proposals, strict=True):
            self._follow(len(query.tokens), proposal)
        return proposals

    def _follow(self, start: int, proposal: Proposal) -> None:
        count = len(proposal.tokens)
        rows = draft_rows(proposal.probabilities, proposal.support, count, self._vocabulary)
        if rows is None:
            return
        for j, (token, row) in enumerate(zip(proposal.tokens, rows, strict=True)):
            drawn = self._path.pick((start + j, Purpose.DRAFT, start), row)
            if drawn != token:
                raise _otherwise(start + j, token, drawn)
            left, rank = without(row, token), 0
            for branch in proposal.branches:
                if branch.depth != j:
                    continue
                (sibling,), rank = branch.tokens, rank + 1
                drawn = self._path.pick((start + j, Purpose.DRAFT, block_key(start, rank)), left)
                if drawn != sibling:
                    raise _otherwise(start + j, sibling, drawn)
                left = without(left, sibling)


def _otherwise(position: int, token: int, drawn: int) -> DisagreementError:
    return DisagreementError(
        f"at position {position} the draft drew token {token}, where what it says it drew from "
        f"gives {drawn}."
    )
