"""The exact rules once more, in float64, deciding by a path instead of by random numbers.

The engine's own draws must come out as these do at both ends of every interval, which is what puts
the intervals' lengths, and so the probabilities of all outputs, beyond doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.certify.paths import NumberPath
from fewbit.keyed_random import Purpose
from fewbit.sampling import Block, Verifier
from fewbit.speculate.block import block_odds
from fewbit.speculate.rows import remainder

Rows: TypeAlias = NDArray[np.float64]

Judge: TypeAlias = Callable[[NumberPath, Block, Rows, Rows | None], list[int]]
"""(path, block, target [K + 1, V], draft [K, V] or None) -> accepted tokens and one more."""


def honest(path: NumberPath, block: Block, target: Rows, draft: Rows | None) -> list[int]:
    """Return what the rule of the block's verifier keeps and draws."""
    rules = {Verifier.MATCH: match, Verifier.TOKEN: by_token, Verifier.BLOCK: by_block}
    verifier = block.verifier if block.draft else Verifier.MATCH
    return rules[verifier](path, block, target, draft)


def match(path: NumberPath, block: Block, target: Rows, _: Rows | None) -> list[int]:
    """Draw from each row as without a draft, as long as the draft said so (`speculate.match`)."""
    tokens: list[int] = []
    for j, row in enumerate(target):
        tokens.append(path.pick((block.position + j, Purpose.TOKEN, 0), row))
        if tokens[j : j + 1] != list(block.draft[j : j + 1]):
            break
    return tokens


def by_token(path: NumberPath, block: Block, target: Rows, draft: Rows | None) -> list[int]:
    """Reject token by token (`speculate.exact`)."""
    start = block.position
    for j, token in enumerate(block.draft):
        chance = target[j, token] / (1.0 if draft is None else draft[j, token])
        if not path.passes((start + j, Purpose.ACCEPT, start), chance):
            left = remainder(target[j], None if draft is None else draft[j], token)
            return [*block.draft[:j], path.pick((start + j, Purpose.CORRECT, start), left)]
    return _bonus(path, block, target)


def by_block(path: NumberPath, block: Block, target: Rows, draft: Rows | None) -> list[int]:
    """Reject a block's ending (`speculate.block`)."""
    start, kept = block.position, 0
    odds = block_odds(list(block.draft), draft, target)
    for j, chance in enumerate(odds.keep):
        if path.passes((start + j, Purpose.ACCEPT, start), float(chance)):
            kept = j + 1
    if kept == len(block.draft):
        return _bonus(path, block, target)
    drawn = path.pick((start + kept, Purpose.CORRECT, start), odds.remainders[kept])
    return [*block.draft[:kept], drawn]


def _bonus(path: NumberPath, block: Block, target: Rows) -> list[int]:
    kept = len(block.draft)
    key = (block.position + kept, Purpose.CORRECT, block.position)
    return [*block.draft, path.pick(key, target[kept])]


def target_rows(logits: NDArray[np.float32], block: Block, vocabulary: int) -> Rows:
    """Return what follows each of a block's prefixes, the whole block included, [K + 1, V].

    Each row goes through the whole pipeline after the drafted tokens before it.
    """
    sampler = block.sampler.fork()
    rows = []
    for j in range(len(block.draft) + 1):
        rows.append(sampler.probabilities(logits[block.row + j], vocabulary=vocabulary))
        sampler.remember(block.draft[j : j + 1])
    return np.stack(rows)[:, :vocabulary]


def draft_rows(
    probabilities: NDArray[np.float32] | None,
    support: NDArray[np.int32] | None,
    count: int,
    vocabulary: int,
) -> Rows | None:
    """Return what each drafted token was drawn from, over the target's ids, [count, V] in float64.

    None where there was nothing to draw from.
    """
    if probabilities is None:
        return None
    drawn_from = probabilities[:count].astype(np.float64)
    ids = np.arange(drawn_from.shape[1]) if support is None else support
    rows = np.zeros((count, max(vocabulary, int(ids[-1]) + 1)))
    rows[:, ids] = drawn_from / drawn_from.sum(axis=1, keepdims=True)
    return rows[:, :vocabulary]
