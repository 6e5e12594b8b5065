"""Bugs that real programs had, planted one at a time: the enumeration must notice every one.

Each says where it was met. A certificate whose controls were not caught proves nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbit.certify.enumeration import (
    TOLERANCE,
    Enumerated,
    Planted,
    enumerate_case,
    enumerated_once,
)
from fewbit.certify.judges import Rows, by_block, row_behind
from fewbit.certify.parts import Parts
from fewbit.certify.paths import Key, NumberPath
from fewbit.keyed_random import Purpose, block_key
from fewbit.progress import Progress
from fewbit.records.certificate import ControlCase
from fewbit.runtime.executor import Executor
from fewbit.runtime.step import StepInput
from fewbit.sampling import Block, SamplingParams
from fewbit.speculate.block import block_odds
from fewbit.speculate.rows import remainder

PENALIZED = SamplingParams(frequency_penalty=1.2, presence_penalty=0.4)
"""Every token that was drawn counts for the next one."""

PLAIN = SamplingParams()

LIKELY = 0.3
"""Of the likeliest token's probability; a draft at or above it looks good enough to the bug."""


class Control(NamedTuple):
    """A bug: its name, what was done in words, how, and the requests that meet it."""

    bug: str
    described: str
    planted: Planted
    params: SamplingParams = PLAIN
    branches: int = 0


def wrong_residual(path: NumberPath, block: Block, target: Rows, draft: Rows | None) -> list[int]:
    """Draw the correction from the target's own row."""
    kept = _kept(path, block, target, draft)
    key = (block.position + kept, Purpose.CORRECT, block.position)
    return [*block.draft[:kept], path.pick(key, target[kept])]


def shared_number(path: NumberPath, block: Block, target: Rows, draft: Rows | None) -> list[int]:
    """Draw the correction by the number that the rejected token was drawn by."""
    kept = _kept(path, block, target, draft)
    ended = kept < len(block.draft)
    weights = block_odds(list(block.draft), draft, target).remainders[kept] if ended else target[-1]
    purpose = Purpose.DRAFT if ended else Purpose.CORRECT
    return [
        *block.draft[:kept],
        path.pick((block.position + kept, purpose, block.position), weights),
    ]


def keeps_likely(path: NumberPath, block: Block, target: Rows, _: Rows | None) -> list[int]:
    """Keep drafted tokens that the target finds likely enough, and draw what follows them."""
    kept = 0
    for token, row in zip(block.draft, target, strict=False):
        if row[token] < LIKELY * row.max():
            break
        kept += 1
    key = (block.position + kept, Purpose.CORRECT, block.position)
    return [*block.draft[:kept], path.pick(key, target[kept])]


def with_replacement(path: NumberPath, block: Block, target: Rows, draft: Rows | None) -> list[int]:
    """Judge every candidate for a position as if all were drawn from the same distribution."""
    assert draft is not None
    start = block.position
    for j, first in enumerate(block.draft):
        own = [branch.tokens[0] for branch in block.branches if branch.depth == j]
        left = target[j]
        for rank, token in enumerate((first, *own)):
            key = (start + j, Purpose.ACCEPT, block_key(start, rank))
            if path.passes(key, left[token] / draft[j, token]):
                break
            left = remainder(left, draft[j], token)
            left /= left.sum()
        else:
            return [*block.draft[:j], path.pick((start + j, Purpose.CORRECT, start), left)]
        if rank:
            row = row_behind(block, [*block.draft[:j], token])
            key = (start + j + 1, Purpose.CORRECT, start)
            return [*block.draft[:j], token, path.pick(key, target[row])]
    key = (start + len(block.draft), Purpose.CORRECT, start)
    return [*block.draft, path.pick(key, target[len(block.draft)])]


def numbers_again(path: NumberPath, block: Block, target: Rows, draft: Rows | None) -> list[int]:
    """Judge a position by the number that judged it in the block before."""
    return by_block(_Again(path), block, target, draft)


def unpenalized_rows(logits: NDArray[np.float32], block: Block, vocabulary: int) -> Rows:
    """Shape every row of a block by the penalties at its beginning."""
    rows = range(block.row, block.row + len(block.draft) + 1)
    found = [block.sampler.probabilities(logits[row], vocabulary=vocabulary) for row in rows]
    return np.stack(found)[:, :vocabulary]


class NotRolledBack:
    """An executor of one sequence whose rows always follow all that was written before."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._written = 0

    @property
    def pages(self) -> int:
        """Pages in the KV store."""
        return self._executor.pages

    def step(self, step: StepInput) -> NDArray[np.float32]:
        """Run the rows behind those of rejected tokens."""
        (span,) = step.spans
        moved = replace(span, position=self._written)
        self._written += span.count
        return self._executor.step(step._replace(spans=(moved,)))


class _Again(NumberPath):
    """A path on which a number has no block."""

    def __init__(self, path: NumberPath) -> None:
        self._of = path

    def passes(self, key: Key, chance: float) -> bool:
        """Return whether a test of this chance is passed."""
        return self._of.passes((*key[:2], 0), chance)

    def pick(self, key: Key, weights: NDArray[np.float64]) -> int:
        """Return the index that is drawn."""
        return self._of.pick((*key[:2], 0), weights)


def _kept(path: NumberPath, block: Block, target: Rows, draft: Rows | None) -> int:
    """Return how many drafted tokens the block's rule keeps."""
    odds = block_odds(list(block.draft), draft, target)
    kept = 0
    for j, chance in enumerate(odds.keep):
        if path.passes((block.position + j, Purpose.ACCEPT, block.position), float(chance)):
            kept = j + 1
    return kept


CONTROLS = (
    Control(
        "a wrong residual",
        "after a rejection the target's own distribution is drawn from, not what is left of it",
        Planted(judge=wrong_residual),
    ),
    Control(
        "a random number shared by two purposes",
        "the number that drew a drafted token also draws the correction after its rejection",
        Planted(judge=shared_number),
    ),
    Control(
        "a missing rollback",
        "keys and values of rejected tokens stay, and the next rows come behind them",
        Planted(executor=NotRolledBack),
    ),
    Control(
        "an unpenalized position",
        "penalties are those of the block's beginning at each of its positions",
        Planted(judge=by_block, rows=unpenalized_rows),
        PENALIZED,
    ),
    Control(
        "a rule that keeps what looks likely",
        f"drafted tokens with {LIKELY:.0%} of the likeliest token's probability are kept",
        Planted(judge=keeps_likely),
    ),
    Control(
        "a random number used for two blocks",
        "a position that is drafted again is judged by the number that judged it before",
        Planted(judge=numbers_again),
    ),
    Control(
        "siblings judged with replacement",
        "candidates for one position, drawn without replacement, are judged as if each had been "
        "drawn from the whole distribution",
        Planted(judge=with_replacement),
        branches=1,
    ),
)


def run_controls(
    case: Enumerated, watch: Progress, parts: Parts | None = None
) -> tuple[ControlCase, ...]:
    """Return what the enumeration says of each bug, and of the same request without it.

    The bug must be what makes the difference, so both are run.
    """
    parts = parts or Parts()
    found = []
    for i, control in enumerate(CONTROLS):
        watch("controls", i, len(CONTROLS))
        asked = replace(case, params=control.params)
        if control.branches:  # one token less: with several candidates there are more paths
            asked = replace(asked, length=case.length - 1, branches=control.branches)
        right = enumerated_once(asked, parts)
        planted = partial(_planted, control, asked, right.distance)
        found.append(parts.once("controls", control.bug, ControlCase, planted))
    return tuple(found)


def _planted(control: Control, asked: Enumerated, without: float) -> ControlCase:
    return ControlCase(
        bug=control.bug,
        planted=control.described,
        distance=enumerate_case(asked, control.planted).distance,
        without=without,
        tolerance=TOLERANCE,
    )
