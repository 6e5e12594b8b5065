"""A model for tests of the engine: random, tiny, and unforgiving about its KV store."""

from collections import OrderedDict

import numpy as np

from fewbit.runtime.step import PAGE
from fewbit.speculate.drafts import Proposal


class FakeExecutor:
    """Logits that depend on every earlier token as the paged store holds it.

    The store keeps a running hash of the sequence at each position. A row reads its predecessor's
    through the page table, so a wrong page, a missing roll-back or a skipped position changes
    everything after it. Pages are filled with noise when made, and rows beyond the span's pages
    are an error.
    """

    def __init__(self, vocabulary=30, pages=64, seed=0, repeat=0.0):
        rng = np.random.default_rng(seed)
        self.pages = pages
        self.vocabulary = vocabulary
        self.steps = []
        self.poisoned = None
        self._table = rng.normal(0, 2, (64, vocabulary)).astype(np.float32)
        self._order = rng.integers(0, 64, vocabulary)
        self._repeat = repeat
        self._store = rng.integers(0, 1 << 30, (pages, PAGE), dtype=np.int64)

    def step(self, step):
        self.steps.append(step)
        assert len(step.tokens) == sum(span.count for span in step.spans)
        held = [page for span in step.spans for page in span.pages]
        assert len(held) == len(set(held)), "a page belongs to two sequences"
        logits = np.empty((len(step.tokens), self.vocabulary), np.float32)
        for span in step.spans:
            for i in range(span.count):
                row = span.start + i
                logits[row] = self._row(int(step.tokens[row]), span.position + i, span.pages)
        return np.ascontiguousarray(logits[step.wanted])

    def _row(self, token, position, pages):
        before = 0 if position == 0 else self._at(position - 1, pages)
        state = (before * 1103515245 + 12345 * (token + 1) + position) % (1 << 30)
        self._store[pages[position // PAGE], position % PAGE] = state
        found = self._table[(state >> 7) % 64].copy()
        # A pull towards a fixed successor makes texts that an n-gram draft can predict.
        found[self._order[token] % self.vocabulary] += self._repeat
        if self.poisoned == position:
            found[3] = np.nan
        return found

    def _at(self, position, pages):
        return int(self._store[pages[position // PAGE], position % PAGE])


class FakeDecoder:
    """One letter a token, but every fifth token only completes the one after it."""

    ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"

    def __init__(self, _after=()):
        self._held = ""

    def push(self, token):
        text = self._held + self.ALPHABET[token % 36]
        self._held = text if token % 5 == 4 else ""
        return "" if self._held else text

    def finish(self):
        held, self._held = self._held, ""
        return held


class FixedDraft:
    """Proposes what a function of the tokens so far says."""

    name = "fixed"

    def __init__(self, choose, context=None):
        self.context = context
        self.released = []
        self.asked = OrderedDict()
        self._choose = choose

    def propose(self, queries):
        for query in queries:
            self.asked.setdefault(query.sequence, []).append((len(query.tokens), query.length))
        return [Proposal(tuple(self._choose(list(q.tokens), q.length))) for q in queries]

    def release(self, sequence):
        self.released.append(sequence)
