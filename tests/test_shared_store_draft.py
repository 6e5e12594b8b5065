"""Drafts over the target's own store, in the engine: no token and no stored key depends on them."""

from __future__ import annotations

import numpy as np
import pytest
from beside_cases import BINDINGS, LENGTH, loaded, pages_of, rows_of, tokens_of, write_eight_bits
from engine_cases import outputs
from engine_storm import Storm, alone, requests
from fakes import FakeDecoder, draft_query

from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation
from fewbit.engine.scheduler import Limits
from fewbit.engine.served import Served
from fewbit.engine.stop import StopCondition
from fewbit.errors import UsageError
from fewbit.formats.registry import parse_format
from fewbit.model.beside import beside
from fewbit.sampling import (
    Block,
    SamplingParams,
    SamplingThreads,
    TokenSampler,
    Verifier,
    distribution,
    sample_blocks,
)
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.early_exit import early_exit_draft
from fewbit.speculate.low_bit import low_bit_draft, nested_draft
from fewbit.speculate.shared_store import SharedStoreDraft

DRAFTS = {
    "nested": lambda runner: nested_draft(runner, 320),
    "exit:2": lambda runner: early_exit_draft(runner, 2, 320),
    "low-bit:int4-g32": lambda runner: low_bit_draft(runner, parse_format("int4-g32"), 320),
}
PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "seeded": SamplingParams(temperature=0.7, top_p=0.9, seed=3),
    "penalties": SamplingParams(
        temperature=0.5, repetition_penalty=1.2, frequency_penalty=0.3, logit_bias={5: -100}, seed=4
    ),
}


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return loaded(write_eight_bits(tmp_path_factory.mktemp("model"), "llama"))


@pytest.fixture(scope="module", params=DRAFTS)
def draft(request, runner):
    return DRAFTS[request.param](runner)


def engine(runner, draft=None, limits=None, longest=5):
    served = Served(runner.executor, 320, runner.context, FakeDecoder)
    return Engine(
        served,
        None if draft is None else Speculation(draft, longest, control=FixedLengths),
        limits=limits,
    )


def request(seed, params, count=40):
    return Request(tuple(tokens_of(seed, 30)), params, StopCondition(max_tokens=count))


# --- exact ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_a_draft_changes_no_token(runner, draft, params):
    asked = [request(1, params)]
    plain, _ = outputs(engine(runner), asked)
    drafted, (record,) = outputs(engine(runner, draft), asked)
    assert drafted == plain
    assert record.draft.draft == draft.name
    assert sum(p.proposed for p in record.draft.positions) > 0


def test_the_upper_bits_rank_tokens_as_the_whole_more_often_than_a_layer_less(runner):
    tokens, pages = tokens_of(2, 120), pages_of(0)
    target = rows_of(runner.executor, tokens, 0, pages).argmax(axis=1)
    agree = {}
    for kind in ("nested", "exit"):
        draft = beside(runner, BINDINGS[kind](runner))
        agree[kind] = (rows_of(draft, tokens, 0, pages).argmax(axis=1) == target).mean()
    assert agree["nested"] > 0.4 > agree["exit"]


def test_a_batch_of_drafts_changes_no_token(runner, draft):
    asked = [request(seed, params, 12) for seed in (3, 4) for params in PARAMS.values()]
    plain = [outputs(engine(runner), [one])[0][0] for one in asked]
    assert outputs(engine(runner, draft, Limits(rows=24, sequences=6)), asked)[0] == plain


def test_the_store_is_that_of_a_plain_run_after_a_speculative_one(runner, draft):
    """What the engine left there is read back by scoring one more token."""
    asked = request(5, PARAMS["greedy"], 50)
    kept = []

    class Watched(Engine):
        def _finish(self, generation, *rest):
            kept.append((list(generation.tokens), generation.computed, generation.table.array))
            return super()._finish(generation, *rest)

    served = Served(runner.executor, 320, runner.context, FakeDecoder)
    list(Watched(served, Speculation(draft, 5, control=FixedLengths)).generate([asked]))
    (tokens, computed, pages), more = kept[0], np.array([9])
    after = rows_of(runner.executor, more, computed, pages)
    ids = np.array([*tokens[:computed], 9])
    fresh = rows_of(loaded(runner.source.path).executor, ids, 0, pages_of(0))
    assert np.array_equal(after[0].view(np.uint32), fresh[-1].view(np.uint32))


@pytest.mark.parametrize("kind", DRAFTS)
def test_joining_leaving_and_cancelling(runner, kind):
    """Chunked prompts, shared pages, preemption; each output is that of its request alone."""
    runner = loaded(runner.source.path, sequences=3)
    draft = DRAFTS[kind](runner)
    asked = requests(16, seed=1, vocabulary=320, longest=80)
    threads = SamplingThreads(runner.executor.pool)
    served = Served(runner.executor, 320, runner.context, FakeDecoder, threads)
    truth = alone(lambda: Engine(served, limits=Limits(rows=200, sequences=1)), asked)
    running = Engine(
        served, Speculation(draft, 3, control=FixedLengths), limits=Limits(rows=30, sequences=6)
    )
    running._scheduler._has_room = lambda generation: True  # so that some are set back
    storm = Storm(running, asked, truth, most=10).run(200)
    assert not storm.wrong
    storm.require_nothing_left()
    assert storm.cancelled > 0
    assert running.record.preemptions > 0


# --- what it proposes -----------------------------------------------------------------------------


def test_it_draws_from_what_its_own_steps_give(runner, draft):
    """Step by step with the executor of the same binding, for two sequences of unequal lengths."""
    kind = draft.name.partition(":")[0]
    executor = beside(runner, BINDINGS[kind](runner))
    queries = []
    for number, (length, params) in enumerate([(4, PARAMS["greedy"]), (2, PARAMS["penalties"])]):
        tokens, pages = [int(t) for t in tokens_of(number)], pages_of(number)
        rows_of(runner.executor, np.array(tokens[:-1]), 0, pages)
        fields = {"pages": pages, "computed": len(tokens) - 1}
        queries.append(draft_query(number, tokens, length, params=params, **fields))
    proposals = draft.propose(queries)
    for query, proposal in zip(queries, proposals, strict=True):
        sampler, drawn, last = query.sampler.fork(), [], query.tokens[-1]
        for i in range(query.length):
            logits = rows_of(executor, np.array([last]), query.computed + i, query.pages)
            block = Block(sampler, 0, len(query.tokens) + i)
            drawn += sample_blocks(logits, [block], vocabulary=320)[0].tokens
            last = drawn[-1]
        assert proposal.tokens == tuple(drawn)
        assert proposal.probabilities is None
        assert draft.pending(query) == 0


def test_without_a_seed_it_says_what_it_drew_from(runner, draft):
    tokens, pages, params = tokens_of(9).tolist(), pages_of(0), SamplingParams(temperature=0.8)
    rows_of(runner.executor, np.array(tokens[:-1]), 0, pages)
    fields = {"pages": pages, "computed": LENGTH - 1, "verifier": Verifier.BLOCK}
    query = draft_query(0, tokens, 3, params=params, **fields)
    (proposal,) = draft.propose([query])
    executor = beside(runner, BINDINGS[draft.name.partition(":")[0]](runner))
    for i, last in enumerate([tokens[-1], *proposal.tokens[:2]]):
        logits = rows_of(executor, np.array([last]), LENGTH - 1 + i, pages)[0]
        expected = distribution(logits, params)
        assert np.allclose(proposal.probabilities[i], expected, rtol=1e-5, atol=1e-9)
        assert expected[proposal.tokens[i]] > 0


class Poisoned:
    """An executor one of whose steps has a logit that is not a number."""

    pages = 4

    def __init__(self, faulty=2):
        self.steps = []
        self.faulty = faulty

    def step(self, step):
        self.steps.append(step)
        logits = np.zeros((len(step.wanted), 320), np.float32)
        if len(self.steps) == self.faulty:
            logits[0, 3] = np.nan
        return logits


def test_a_fault_ends_one_proposal_and_not_the_others():
    executor = Poisoned()
    queries = [
        draft_query(i, [1, 2, 3], 4, pages=pages_of(i), computed=2, params=PARAMS["greedy"])
        for i in range(2)
    ]
    found = SharedStoreDraft("x", executor, 320).propose(queries)
    assert [len(proposal.tokens) for proposal in found] == [1, 4]
    assert [len(step.tokens) for step in executor.steps] == [2, 2, 1, 1]
    assert [span.position for span in executor.steps[2].spans] == [4]


def test_it_writes_behind_what_is_computed_only():
    executor = Poisoned(faulty=0)
    query = draft_query(0, tokens_of(1).tolist(), 3, pages=pages_of(0), computed=LENGTH - 1)
    SharedStoreDraft("x", executor, 320).propose([query])
    positions = [step.spans[0].position for step in executor.steps]
    assert positions == [LENGTH - 1, LENGTH, LENGTH + 1]


def test_the_sequences_own_sampler_is_left_alone(runner, draft):
    tokens = tokens_of(8).tolist()
    rows_of(runner.executor, np.array(tokens[:-1]), 0, pages_of(0))
    params = PARAMS["penalties"]
    query = draft_query(0, tokens, 4, pages=pages_of(0), computed=LENGTH - 1, params=params)
    draft.propose([query])
    fresh = TokenSampler(params, seed=1, sample=0, prompt=tokens)
    logits = np.random.default_rng(0).standard_normal(320).astype(np.float32)
    assert np.array_equal(query.sampler.probabilities(logits), fresh.probabilities(logits))


def test_a_target_without_eight_bits_has_no_nested_draft(tmp_path):
    plain = loaded(write_eight_bits(tmp_path), nested=False)
    with pytest.raises(UsageError, match="needs weights in int8"):
        nested_draft(plain, 320)
