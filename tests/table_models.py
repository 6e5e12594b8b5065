"""A target and a draft whose logits depend on the last token alone: the truth is one row."""

import itertools

import numpy as np
from fakes import FakeDecoder

from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation
from fewbit.engine.served import Served
from fewbit.engine.stop import StopCondition
from fewbit.sampling import (
    Block,
    DraftRow,
    History,
    TokenSampler,
    adjusted_logits,
    distribution,
    draw_proposals,
    sample_blocks,
)
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.drafts import Proposal

PROMPT = (5, 1, 2)
VOCABULARY = 24
DRAWS = 12_000
SIGMAS = 4.5
"""Deviations of a frequency over DRAWS draws from its probability: exceeded by none of 24 tokens
but once in 6,000 runs, and the seeds are fixed."""


def tables(seed=0, *, near=0.6, scale=2.0, vocabulary=VOCABULARY):
    """Return logits by last token of a target and of a draft much like it, float32 [V, V]."""
    random = np.random.default_rng(seed)
    target = random.normal(0, scale, (vocabulary, vocabulary))
    draft = target + random.normal(0, near, target.shape)
    return target.astype(np.float32), draft.astype(np.float32)


class TableExecutor:
    """Keeps nothing: what a token is followed by depends on it alone."""

    pages = 256

    def __init__(self, table):
        self._table = table

    def step(self, step):
        return np.ascontiguousarray(self._table[step.tokens[step.wanted]])


class TableDraft:
    """Draws from a table of its own, as the contract of drafts says."""

    name, context, shares_store = "table", None, False

    def __init__(self, table, support=None):
        self._table, self._support = table, support

    def pending(self, query):
        return 0

    def release(self, sequence):
        pass

    def propose(self, queries):
        return [self._proposal(query) for query in queries]

    def _proposal(self, query):
        columns = self._table if self._support is None else self._table[:, self._support]
        fork, start, tokens = query.sampler.fork(), len(query.tokens), []
        rows = None if query.verifier.couples else np.empty((query.length, columns.shape[1]), "f4")
        for j in range(query.length):
            last = tokens[-1] if tokens else query.tokens[-1]
            row = DraftRow(fork, 0, start + j, start, None if rows is None else rows[j])
            logits = np.ascontiguousarray(columns[last : last + 1])
            (drafted,) = draw_proposals(logits, [row], support=self._support)
            if drafted.fault is not None:
                break
            tokens.append(drafted.token)
        kept = None if rows is None else rows[: len(tokens)]
        return Proposal(tuple(tokens), kept, self._support)


def table_engine(table, draft=None, *, longest=5, vocabulary=None, context=4096):
    """Return an engine over a table, drafting as much as can be of use."""
    ticks = itertools.count()
    served = Served(TableExecutor(table), vocabulary or len(table), context, FakeDecoder)
    speculation = None if draft is None else Speculation(draft, longest, control=FixedLengths)
    return Engine(served, speculation, clock=lambda: next(ticks) * 1e-3)


def said(engine, params, *, most=200, stop=None, prompt=PROMPT, **fields):
    """Return tokens, text, log-probabilities and the record of one request."""
    request = Request(prompt, params, stop or StopCondition(most), **fields)
    tokens, text, logprobs, record = [], "", [], None
    for output in engine.generate([request]):
        tokens += output.tokens
        text += output.text
        logprobs += output.logprobs
        record = output.record or record
    return tokens, text, logprobs, record


def truths(table, tokens, params, prompt=PROMPT):
    """Yield what each token of an output was to be drawn from, float64 [V], one by one."""
    whole = [*prompt, *tokens]
    for i in range(len(prompt), len(whole)):
        history = History(np.array(whole[:i], np.int32), len(prompt))
        yield distribution(table[whole[i - 1]], params, history)


def greedy_truth(table, params, count, prompt=PROMPT):
    """Return the output of a greedy request, token by token in NumPy."""
    whole = list(prompt)
    for _ in range(count):
        history = History(np.array(whole, np.int32), len(prompt))
        whole.append(int(np.argmax(adjusted_logits(table[whole[-1]], params, history))))
    return whole[len(prompt) :]


def requires_frequencies(found, expected):
    """Compare frequencies with probabilities, each within its own deviation."""
    seen = np.bincount(found, minlength=len(expected)) / len(found)
    deviation = np.sqrt(expected * (1 - expected) / len(found))
    assert (np.abs(seen - expected) <= SIGMAS * deviation + 1e-9).all()


def first_tokens(params, verifier, *, length=2, support=None, reported=None, numbers=None):
    """Draft and judge many blocks behind token 3, and return the first token of each.

    The draft has the tokens `support` alone; None for all. `reported` changes what it says it drew
    from; `numbers` gives each block its script.
    """
    target, near = tables()
    near = near if support is None else near[:, support]
    rows = np.empty((DRAWS, length, near.shape[1]), np.float32)
    samplers = [
        TokenSampler(params, seed=i, numbers=None if numbers is None else numbers(i))
        for i in range(DRAWS)
    ]
    forks, last = [sampler.fork() for sampler in samplers], np.full(DRAWS, 3)
    drafted = []
    for j in range(length):
        draws = [DraftRow(forks[i], i, 1 + j, 1, rows[i, j]) for i in range(DRAWS)]
        found = draw_proposals(np.ascontiguousarray(near[last]), draws, support=support)
        last = np.array([one.token for one in found])
        drafted.append(last)
    tokens = np.stack(drafted, axis=1)
    seen = np.concatenate([np.full((DRAWS, 1), 3), tokens], axis=1)
    claimed = rows if reported is None else reported(rows)
    blocks = [
        Block(
            samplers[i],
            i * (length + 1),
            1,
            tokens[i].tolist(),
            verifier=verifier,
            probabilities=claimed[i],
            support=support,
        )
        for i in range(DRAWS)
    ]
    drawn = sample_blocks(np.ascontiguousarray(target[seen.reshape(-1)]), blocks)
    return np.array([one.tokens[0] for one in drawn])
