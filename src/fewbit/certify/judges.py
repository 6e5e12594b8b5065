"""The exact rules once more, in float64, deciding by a path instead of by random numbers.

The engine's own draws must come out as these do at both ends of every interval, which is what puts
the intervals' lengths, and so the probabilities of all outputs, beyond doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.certify.paths import NumberPath
from fewbit.keyed_random import Purpose, block_key
from fewbit.sampling import Block, Verifier
from fewbit.speculate.block import block_odds
from fewbit.speculate.rows import remainder

Rows: TypeAlias = NDArray[np.float64]

Judge: TypeAlias = Callable[[NumberPath, Block, Rows, Rows | None], list[int]]
"""(path, block, target [rows, V], draft [K, V] or None) -> accepted tokens and one more."""


def honest(path: NumberPath, block: Block, target: Rows, draft: Rows | None) -> list[int]:
    """Return what the rule of the block's verifier keeps and draws."""
    rules = {Verifier.MATCH: match, Verifier.TOKEN: by_token, Verifier.BLOCK: by_block}
    verifier = block.verifier if block.draft else Verifier.MATCH
    return rules[verifier](path, block, target, draft)


def match(path: NumberPath, block: Block, target: Rows, _: Rows | None) -> list[int]:
    """Draw from each row as without a draft, as long as the draft said so (`speculate.tree`)."""
    tokens: list[int] = []
    row = 0
    while True:
        key = (block.position + len(tokens), Purpose.TOKEN, 0)
        tokens.append(path.pick(key, target[row]))
        found = row_behind(block, tokens)
        if found is None:
            return tokens
        row = found


def row_behind(block: Block, tokens: Sequence[int]) -> int | None:
    """Return the row of a block that follows these drafted tokens; None where it has no such."""
    if list(tokens) == list(block.draft[: len(tokens)]):
        return len(tokens)
    first = len(block.draft) + 1
    for depth, own in block.branches:
        along = [*block.draft[:depth], *own]
        if len(tokens) > depth and list(tokens) == along[: len(tokens)]:
            return first + len(tokens) - depth - 1
        first += len(own)
    return None


def branch_of(block: Block, tokens: Sequence[int]) -> int | None:
    """Return the branch on which drawn tokens end but for their last, their own; None for none."""
    accepted = list(tokens[:-1])
    if accepted == list(block.draft[: len(accepted)]):
        return None
    for i, (depth, own) in enumerate(block.branches):
        if len(accepted) > depth and accepted == [*block.draft[:depth], *own][: len(accepted)]:
            return i
    raise AssertionError("drawn tokens follow no branch")


def by_token(path: NumberPath, block: Block, target: Rows, draft: Rows | None) -> list[int]:
    """Reject token by token, of several candidates one after another (`speculate.tree`)."""
    start = block.position
    for j, token in enumerate(block.draft):
        chance = target[j, token] / (1.0 if draft is None else draft[j, token])
        if path.passes((start + j, Purpose.ACCEPT, start), chance):
            continue
        left = remainder(target[j], None if draft is None else draft[j], token)
        if draft is not None and any(branch.depth == j for branch in block.branches):
            return _siblings(path, block, target, left, without(draft[j], token), j)
        return [*block.draft[:j], path.pick((start + j, Purpose.CORRECT, start), left)]
    return _bonus(path, block, target)


def _siblings(  # noqa: PLR0913, PLR0917
    path: NumberPath, block: Block, target: Rows, left: Rows, drawn: Rows, depth: int
) -> list[int]:
    """Judge the branches at a depth, whose token of the chain was rejected.

    Args:
        path: what decides.
        block: whose branches.
        target: its rows.
        left: what is left of the target's distribution there, of any sum.
        drawn: what the first branch was drawn from.
        depth: where they leave the chain.
    """
    start, rank = block.position, 0
    for branch in block.branches:
        if branch.depth != depth:
            continue
        (token,), rank = branch.tokens, rank + 1
        left /= left.sum()
        key = (start + depth, Purpose.ACCEPT, block_key(start, rank))
        if path.passes(key, left[token] / drawn[token]):
            row = row_behind(block, [*block.draft[:depth], token])
            key = (start + depth + 1, Purpose.CORRECT, start)
            return [*block.draft[:depth], token, path.pick(key, target[row])]
        left, drawn = remainder(left, drawn, token), without(drawn, token)
    return [*block.draft[:depth], path.pick((start + depth, Purpose.CORRECT, start), left)]


def without(row: Rows, token: int) -> Rows:
    """Return what is drawn from next when this token is not to come again; zeros if nothing is."""
    left = row.copy()
    left[token] = 0.0
    return left / (left.sum() or 1.0)


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

    Each row goes through the whole pipeline after the drafted tokens before it. Behind those of the
    chain come the rows after each token of the branches.
    """
    before = [list(block.draft[:j]) for j in range(len(block.draft) + 1)]
    for depth, tokens in block.branches:
        before += [[*block.draft[:depth], *tokens[: i + 1]] for i in range(len(tokens))]
    rows = []
    for j, drafted in enumerate(before):
        sampler = block.sampler.fork()
        sampler.remember(drafted)
        rows.append(sampler.probabilities(logits[block.row + j], vocabulary=vocabulary))
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
