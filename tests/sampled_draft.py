"""A draft that draws from a model of its own, for tests: its context is the text, not a store."""

import numpy as np

from fewbit.sampling import DraftRow, draw_proposals
from fewbit.speculate.drafts import Proposal


class SampledDraft:
    """Draws from `logits(tokens)`, which are over the ids `support`, as a good draft does."""

    name = "sampled"
    context = None
    shares_store = False

    def __init__(self, logits, *, support=None, vocabulary=None):
        self._logits = logits
        self._support = support
        self._vocabulary = vocabulary

    def pending(self, query):
        return 0

    def release(self, sequence):
        pass

    def propose(self, queries):
        return [self._propose(query) for query in queries]

    def _propose(self, query):
        fork, text = query.sampler.fork(), list(query.tokens)
        start, rows = len(text), []
        for _ in range(query.length):
            logits = np.asarray(self._logits(text), np.float32)[None]
            into = None if query.verifier.couples else np.empty(logits.shape[1], np.float32)
            drawing = DraftRow(fork, 0, len(text), start, into)
            found = draw_proposals(
                logits, [drawing], support=self._support, vocabulary=self._vocabulary
            )
            text.append(found[0].token)
            rows.append(into)
        probabilities = None if query.verifier.couples else np.stack(rows)
        return Proposal(tuple(text[start:]), probabilities, self._support)
