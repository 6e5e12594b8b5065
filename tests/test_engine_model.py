"""The engine over real executors: drafts and batches change no token of a tiny model's output."""

import numpy as np
import pytest
from engine_storm import Storm, alone, requests
from fakes import FakeDecoder, FixedDraft
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation
from fewbit.engine.scheduler import Limits
from fewbit.engine.served import Served
from fewbit.engine.stop import StopCondition
from fewbit.model.runner import load
from fewbit.runtime.native import NativeExecutor
from fewbit.sampling import SamplingParams, SamplingThreads
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.drafts import NgramDraft

PARAMS = [SamplingParams(temperature=0), SamplingParams(temperature=0.6, top_p=0.9, seed=4)]
RNG = np.random.default_rng(5)
PROMPTS = [tuple(RNG.integers(0, 320, n).tolist()) for n in (1, 23, 70)]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def runner(request, tmp_path_factory):
    """gemma3's window is 8 keys: rejected rows lie inside it (transformers #48280)."""
    config = CONFIGS[request.param]
    folder = write_huggingface(
        tmp_path_factory.mktemp(request.param), config, random_weights(config)
    )
    return load(folder, sequences=4, context=128)


def outputs(runner, requests, draft=None, limits=None):
    served = Served(runner.executor, 320, runner.context, FakeDecoder)
    speculation = None if draft is None else Speculation(draft, 5, control=FixedLengths)
    engine = Engine(served, speculation, limits=limits)
    tokens = {i: [] for i in range(len(requests))}
    for output in engine.generate(requests):
        tokens[output.request] += output.tokens
    return list(tokens.values())


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
def test_a_draft_changes_no_token(runner, params):
    request = Request(PROMPTS[1], params, StopCondition(max_tokens=24))
    plain = outputs(runner, [request])
    whole = list(request.prompt) + plain[0] + [0] * 8

    def half_right(seen, length):
        known = whole[len(seen) : len(seen) + length]
        return [t if i != 2 else (t + 1) % 320 for i, t in enumerate(known)]

    for draft in (NgramDraft(longest=2, shortest=1), FixedDraft(half_right)):
        assert outputs(runner, [request], draft) == plain


def test_a_batch_changes_no_token(runner):
    requests = [
        Request(prompt, params, StopCondition(max_tokens=8))
        for prompt in PROMPTS
        for params in PARAMS
    ]
    alone = [outputs(runner, [request])[0] for request in requests]
    limits = Limits(rows=20, sequences=6)
    assert outputs(runner, requests, NgramDraft(longest=1, shortest=1), limits) == alone


def test_a_storm_of_requests_leaves_no_page_and_changes_no_token(runner):
    """Chunked prompts, shared pages, drafts, preemption and cancelling, on the native kernels."""
    executor = runner.executor
    assert isinstance(executor, NativeExecutor)
    asked = requests(40, seed=1, vocabulary=320, longest=100)
    threads = SamplingThreads(executor.pool)
    served = Served(executor, 320, runner.context, FakeDecoder, threads)

    def plain():
        return Engine(served, limits=Limits(rows=200, sequences=1))

    draft = Speculation(NgramDraft(longest=2, shortest=1), 3, control=FixedLengths)
    running = Engine(served, draft, limits=Limits(rows=30, sequences=8))
    running._scheduler._has_room = lambda generation: True  # so that many are set back
    storm = Storm(running, asked, alone(plain, asked), most=16).run(400)
    assert not storm.wrong
    storm.require_nothing_left()
    assert running.record.preemptions > 10
    assert running.record.cached_tokens > 1000
    assert running.record.evictions > 10
