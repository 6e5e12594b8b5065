"""Sequences drawn by several threads get the tokens that one thread draws for them."""

import numpy as np
import pytest

from fewbit.runtime.native import thread_pool
from fewbit.sampling import Block, SamplingParams, SamplingThreads, TokenSampler, sample_blocks

PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1),
    SamplingParams(top_k=7, frequency_penalty=0.5, seed=2),
    SamplingParams(min_p=0.01, seed=3),
]


def drawn(logits, threads, rounds=1):
    """Draw for 16 sequences, every fourth along a draft of which the first token is right."""
    samplers = [TokenSampler(PARAMS[i % 4], seed=i, prompt=(1, 2)) for i in range(16)]
    found = []
    for n in range(rounds):
        best = logits.argmax(axis=1).tolist()
        blocks = [
            Block(sampler, 2 * i, 3 + n, (best[2 * i],) if i % 4 == 0 else (), i % 3 or None)
            for i, sampler in enumerate(samplers)
        ]
        found.append(sample_blocks(logits, blocks, vocabulary=900, threads=threads))
    return [[(d.tokens, d.logprobs, d.fault) for d in each] for each in found]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_threads_and_kept_buffers_change_nothing(count):
    logits = np.random.default_rng(0).normal(0, 3, (32, 1000)).astype(np.float32)
    alone = drawn(logits, None, rounds=20)
    assert len(alone[0][0][0]) == 2
    assert drawn(logits, SamplingThreads(thread_pool(count)), rounds=20) == alone


def test_a_fault_stays_with_its_sequence():
    logits = np.random.default_rng(0).normal(0, 3, (32, 1000)).astype(np.float32)
    before = drawn(logits, None)[0]
    logits[6, 5] = np.nan
    found = drawn(logits, SamplingThreads(thread_pool(3)))[0]
    assert "token 5" in str(found[3][2])
    assert found[:3] + found[4:] == before[:3] + before[4:]
