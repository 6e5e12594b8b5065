"""The source's final states: run natively in bf16, and by torch in float32 as the truth."""

import numpy as np
import pytest
import torch
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.model.decoder import build_program
from fewbit.model.weights import open_model
from fewbit.runtime.torch_executor import DecodedWeights, TorchExecutor
from fewbit.tune import Precision
from fewbit.tune.source import run_source

pytestmark = pytest.mark.interop

WINDOWS, LENGTH = 3, 40


@pytest.fixture(scope="module", name="tokens")
def fixture_tokens():
    random = np.random.default_rng(4)
    return torch.from_numpy(random.integers(0, 320, (WINDOWS, LENGTH)))


@pytest.fixture(params=["llama-tied", "qwen2", "gemma3"], name="source")
def fixture_source(request, tmp_path):
    config = CONFIGS[request.param]
    with open_model(write_huggingface(tmp_path / "tiny", config, random_weights(config))) as source:
        yield source


def states(source, tokens, precision, arithmetic):
    program = build_program(source.config)
    weights = DecodedWeights({slot: source.read(slot) for slot in source.slots}, arithmetic)
    executor = TorchExecutor(program, weights, arithmetic)
    run = run_source(source, program, executor, precision, (WINDOWS, LENGTH))
    return run(tokens)


def distance(found, exact):
    return float((found.float() - exact).norm() / exact.norm())


def test_native_states_are_within_the_rounding_of_bf16(source, tokens):
    """A product of bf16 values errs by 2^-8 relative; a few layers add up some of it, not more."""
    exact = states(source, tokens, Precision.F32, torch.float32)
    found = states(source, tokens, Precision.BF16, torch.bfloat16)
    assert found.dtype == torch.bfloat16
    assert found.shape == exact.shape == (WINDOWS, LENGTH, source.config.hidden)
    assert 2.0**-12 < distance(found, exact) < 8 * 2.0**-8


def test_windows_do_not_see_each_other_nor_their_padding(source, tokens):
    together = states(source, tokens, Precision.BF16, torch.bfloat16)
    alone = states(source, tokens[1:2, :25], Precision.BF16, torch.bfloat16)
    assert torch.equal(together[1, :25], alone[0])


def test_another_text_is_told_apart(source, tokens):
    exact = states(source, tokens, Precision.F32, torch.float32)
    planted = tokens.clone()
    planted[:, 0] = (planted[:, 0] + 1) % 320
    found = states(source, planted, Precision.BF16, torch.bfloat16)
    assert distance(found[:, :8], exact[:, :8]) > 8 * 2.0**-8
