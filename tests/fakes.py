"""A model for tests of the engine: random, tiny, and unforgiving about its KV store."""

from collections import Counter, OrderedDict

import numpy as np

from fewbit.runtime.step import PAGE
from fewbit.sampling import SamplingParams, TokenSampler
from fewbit.speculate.drafts import DraftQuery, Proposal
from fewbit.speculate.verifier import Verifier


class FakeExecutor:
    """Logits that depend on every earlier token as the paged store holds it.

    The store keeps a running hash of the sequence at each position. A row reads its predecessor's
    and one of each full page before it, through the page table. So a wrong page, a missing
    roll-back, a skipped position, or a shared page that somebody wrote over changes what follows.
    Pages are filled with noise when made; rows beyond the span's pages, and a page written in while
    another sequence has it, are errors.
    """

    def __init__(self, vocabulary=30, pages=64, seed=0, repeat=0.0):
        rng = np.random.default_rng(seed)
        self.pages = pages
        self.vocabulary = vocabulary
        self.steps = []
        self.poisoned = None
        self._table = rng.normal(0, 2, (64, vocabulary)).astype(np.float32)
        self._order = rng.integers(0, 64, vocabulary) % vocabulary
        self._repeat = repeat
        self._store = rng.integers(0, 1 << 30, (pages, PAGE), dtype=np.int64).tolist()

    def step(self, step):
        self.steps.append(step)
        assert len(step.tokens) == sum(span.count for span in step.spans)
        self._require_writers_alone(step)
        tokens, wanted = step.tokens.tolist(), step.wanted.tolist()
        seen = {}
        for span in step.spans:
            pages = span.pages.tolist()
            if span.trunk is not None:
                self._follow(span, step.spans[span.trunk])
            self._write_rows(tokens[span.start : span.start + span.count], span.position, pages)
            rows = [row for row in wanted if span.start <= row < span.start + span.count]
            for row in rows:
                seen[row] = self._seen(span.position + row - span.start, pages)
        return self._logits(step, [seen[row] for row in wanted])

    def _follow(self, span, trunk):
        """Copy what a branch continues: the trunk's page from before the step, and its rows."""
        assert trunk.trunk is None
        assert trunk.position < span.position <= trunk.position + trunk.count
        for at in range(trunk.position // PAGE * PAGE, span.position):
            self._write(at, span.pages.tolist(), self._read(at, trunk.pages.tolist()))

    def _require_writers_alone(self, step):
        held = Counter(page for span in step.spans for page in span.pages.tolist())
        for span in step.spans:
            last = span.position + span.count - 1
            for page in span.pages[span.position // PAGE : last // PAGE + 1].tolist():
                assert held[page] == 1, "a page that another sequence has is written in"

    def _write_rows(self, tokens, position, pages):
        state = self._read(position - 1, pages) if position else 0
        for i, token in enumerate(tokens, start=position):
            state = (state * 1103515245 + 12345 * (token + 1) + i) % (1 << 30)
            self._write(i, pages, state)

    def _read(self, position, pages):
        return self._store[pages[position // PAGE]][position % PAGE]

    def _write(self, position, pages, state):
        self._store[pages[position // PAGE]][position % PAGE] = state

    def _seen(self, position, pages):
        state = self._read(position, pages)
        for i in range(position // PAGE):
            state += (2 * i + 1) * self._store[pages[i]][(position * 5 + i) % PAGE]
        return state

    def _logits(self, step, seen):
        logits = self._table[[(state >> 7) % 64 for state in seen]]
        # A pull towards a fixed successor makes texts that an n-gram draft can predict.
        logits[np.arange(len(seen)), self._order[step.tokens[step.wanted]]] += self._repeat
        if self.poisoned is not None:
            logits[step.positions()[step.wanted] == self.poisoned, 3] = np.nan
        return logits


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


def draft_query(sequence, tokens, length, *, params=None, verifier=Verifier.MATCH, **fields):
    """Ask as an engine does, for a sequence that is all prompt."""
    sampler = TokenSampler(params or SamplingParams(), seed=1, sample=sequence, prompt=tokens)
    return DraftQuery(sequence, tokens, length, sampler, verifier, **fields)


class FixedDraft:
    """Proposes what a function of the tokens so far says."""

    name = "fixed"

    def __init__(self, choose, context=None, shares_store=False):
        self.context = context
        self.shares_store = shares_store
        self.queries = []
        self.released = []
        self.asked = OrderedDict()
        self._choose = choose

    def pending(self, query):
        return 0

    def propose(self, queries):
        self.queries += queries
        for query in queries:
            self.asked.setdefault(query.sequence, []).append((len(query.tokens), query.length))
        return [Proposal(tuple(self._choose(list(q.tokens), q.length))) for q in queries]

    def release(self, sequence):
        self.released.append(sequence)
