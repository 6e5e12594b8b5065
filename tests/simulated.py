"""An engine whose clock is simulated: steps and drafts take what a cost table says, and no more."""

from itertools import accumulate

import numpy as np
from fakes import FakeDecoder

from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation
from fewbit.engine.scheduler import Limits
from fewbit.engine.served import Served
from fewbit.engine.stop import StopCondition
from fewbit.records.costs import CostTable
from fewbit.sampling import SamplingParams
from fewbit.speculate.costs import Shape, drafting_seconds, step_seconds
from fewbit.speculate.drafts import Proposal

GREEDY = SamplingParams(temperature=0)
VOCABULARY = 8
STEP = 0.026
"""Seconds of a plain step: a 1.5B model's."""

ROWS = (1, 2, 4, 8, 16, 32, 64)
LARGE = CostTable(
    rows=ROWS,
    seconds=tuple(STEP * cost for cost in (1.0, 1.03, 1.1, 1.5, 2.2, 3.6, 6.4)),
    sequences=(1, 16),
    draft_seconds=(0.4 * STEP, 0.6 * STEP),
    draft_read=0.04 * STEP,
)
"""A target and a smaller model that drafts."""

LOOKUP = CostTable(
    rows=ROWS,
    seconds=LARGE.seconds,
    sequences=(1, 16),
    draft_seconds=(2e-6, 3e-5),
    draft_fixed=2e-5,
)
"""The same target and a draft that looks tokens up."""

DEAR_ROWS = CostTable(
    rows=(1, 2),
    seconds=(STEP, 1.9 * STEP),
    sequences=(1, 16),
    draft_seconds=(0.1 * STEP, 0.1 * STEP),
)
"""A target whose rows cost nearly a step each, as in llama.cpp #10594."""


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class CountingExecutor:
    """Always says the token after the last one, and takes what the table says for it."""

    pages = 4096

    def __init__(self, clock, table, noise=0.0):
        self._clock, self._table, self._noise = clock, table, noise
        self._rng = np.random.default_rng(0)

    def step(self, step):
        context = sum(span.position for span in step.spans)
        keys = sum(span.position * span.count for span in step.spans)
        seconds = step_seconds(self._table, Shape(len(step.tokens), context, keys))
        self._clock.now += seconds * (1 + self._noise * self._rng.standard_exponential())
        logits = np.zeros((len(step.wanted), VOCABULARY), np.float32)
        logits[np.arange(len(step.wanted)), (step.tokens[step.wanted] + 1) % VOCABULARY] = 9
        return logits


class ChanceDraft:
    """Right at each position by a chance that may depend on sequence, position and index."""

    name, context, shares_store = "chance", None, False

    def __init__(self, clock, table, chance):
        self._clock, self._table, self._chance = clock, table, chance
        self._rng = np.random.default_rng(1)
        self._read = {}
        self.calls = []

    def pending(self, query):
        if not self._table.draft_read:
            return 0
        return max(len(query.tokens) - 1 - self._read.get(query.sequence, 0), 0)

    def propose(self, queries):
        unread = sum(self.pending(query) for query in queries)
        lengths = [query.length for query in queries]
        counts = [sum(n > j for n in lengths) for j in range(max(lengths))]
        self._clock.now += drafting_seconds(self._table.drafts[0], counts, unread)
        self.calls.append(lengths)
        for query in queries:  # what it drafted itself it has read, but for the last token
            self._read[query.sequence] = len(query.tokens) + query.length - 1
        return [self._proposal(query) for query in queries]

    def _proposal(self, query):
        tokens, last = [], query.tokens[-1]
        for i in range(query.length):
            chance = self._chance(query.sequence, len(query.tokens) + i, i)
            right = self._rng.random() < chance
            last = (last + (1 if right else 2)) % VOCABULARY
            tokens.append(last)
        return Proposal(tuple(tokens))

    def release(self, sequence):
        self._read.pop(sequence, None)


def serve(
    table,
    chance=None,
    *,
    requests=1,
    tokens=400,
    prompt=100,
    longest=8,
    known=True,
    noise=0.0,
    arrive=0,
):
    """Serve requests and return (seconds, records, engine); plain without a chance.

    Args:
        table: the true costs.
        chance: of a drafted token to be right, by (sequence, position, index in the draft).
        requests: how many.
        tokens: each of them generates.
        prompt: length of each prompt.
        longest: draft.
        known: whether the engine is given the table, or has to learn the costs.
        noise: mean of an exponential that a step takes longer, in units of the step.
        arrive: steps between two requests; 0 for all at once.
    """
    clock = Clock()
    executor = CountingExecutor(clock, table, noise)
    draft = None if chance is None else ChanceDraft(clock, table, chance)
    speculation = draft and Speculation(draft, longest, table if known else None)
    served = Served(executor, VOCABULARY, 100_000, FakeDecoder)
    engine = Engine(served, speculation, limits=Limits(stall=1e9), clock=clock)
    request = Request(tuple(i % VOCABULARY for i in range(prompt)), GREEDY, StopCondition(tokens))
    waiting = [step * arrive for step in range(requests)]
    records, steps = [], 0
    while waiting or engine.busy:
        while waiting and waiting[0] <= steps:
            waiting.pop(0)
            engine.add(request)
        records += [o.record for o in engine.step() if o.record]
        steps += 1
    return clock.now, records, engine


def survival(chance, longest):
    """Return S_1, S_2, ... of one chance for every position."""
    return list(accumulate([chance] * longest, lambda a, b: a * b))
