"""Context-dependent tiny models, and the exact law of what a rule emits on them."""

import itertools

import numpy as np

from fewbit.speculate.block import block_odds


class TinyModel:
    """A distribution for every context of up to `length` tokens; some tokens may be impossible."""

    def __init__(self, vocabulary, length, seed, *, zeros=0.0):
        rng = np.random.default_rng(seed)
        self.vocabulary = vocabulary
        self._rows = {}
        for size in range(length + 1):
            for context in itertools.product(range(vocabulary), repeat=size):
                row = rng.gamma(0.7, size=vocabulary) * (rng.random(vocabulary) >= zeros)
                row[rng.integers(vocabulary)] += 0.1
                self._rows[context] = row / row.sum()

    def row(self, context):
        return self._rows[tuple(context)]

    def rows(self, block):
        """What follows each of the block's prefixes, the whole block included: [K + 1, V]."""
        return np.stack([self.row(block[:i]) for i in range(len(block) + 1)])

    def text(self, length):
        """The probability of every text of `length` tokens."""
        law = {(): 1.0}
        for _ in range(length):
            law = {(*t, x): w * p for t, w in law.items() for x, p in enumerate(self.row(t)) if p}
        return law


def continued(law, target, length):
    """Let the target finish every text to `length` tokens."""
    while any(len(text) < length for text in law):
        grown = {}
        for text, weight in law.items():
            for token, p in enumerate(target.row(text)) if len(text) < length else [(None, 1.0)]:
                key = text if token is None else (*text, token)
                grown[key] = grown.get(key, 0.0) + weight * p
        law = grown
    return law


def emitted_by_block(draft, target, length, *, odds=block_odds):
    """The law of the tokens that one block of `length` emits, given the odds of each block."""
    law = {}
    for block, weight in draft.text(length).items():
        rows = target.rows(block)
        keep, remainders = odds(list(block), draft.rows(block)[:-1], rows)
        for kept in range(length + 1):
            chance = weight * np.prod(1 - np.asarray(keep[kept:]))
            chance *= keep[kept - 1] if kept else 1.0
            after = rows[-1] if kept == length else remainders[kept]
            for token, p in enumerate(after / after.sum()):
                key = (*block[:kept], token)
                law[key] = law.get(key, 0.0) + chance * p
    return law


def distance(one, other):
    """The largest difference of two laws in any text."""
    return max(abs(one.get(k, 0.0) - other.get(k, 0.0)) for k in one.keys() | other.keys())
