"""Logits of the reference executor against transformers in float32, family by family."""

# ruff: noqa: PLC0415  (torch is imported inside the tests, which run in `make test-interop` only)
from __future__ import annotations

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.model.config import ModelConfig
from fewbit.model.huggingface import to_huggingface
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.program import CacheType

pytestmark = pytest.mark.interop

LENGTH = 90
BOUND = 1e-4
"""The acceptance of the project. Both sides round float32 at each op: 4 layers of sums over at most
96 terms give errors of a few 1e-6 on logits of deviation 1; a wrong constant gives 1e-2 or more."""

TOKENS = np.random.default_rng(7).integers(0, 320, LENGTH).astype(np.int32)


def our_logits(path) -> tuple[ModelConfig, np.ndarray]:
    settings = RunSettings(executor="reference", cache_type=CacheType.F32)
    runner = runner_of(open_model(path), settings)
    return runner.config, np.concatenate([rows.copy() for rows in runner.score(TOKENS)])


def their_logits(folder) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS.astype(np.int64))[None]).logits[0].numpy()


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers(name, tmp_path):
    config = CONFIGS[name]
    folder = write_huggingface(tmp_path / name, config, random_weights(config))
    _, ours = our_logits(folder)
    assert np.abs(ours - their_logits(folder)).max() <= BOUND


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_reads_the_configuration_we_write(name, tmp_path):
    weights = random_weights(CONFIGS[name])
    source = write_huggingface(tmp_path / "source", CONFIGS[name], weights)
    config, ours = our_logits(source)
    written = write_huggingface(tmp_path / "written", to_huggingface(config), weights)
    assert np.abs(ours - their_logits(written)).max() <= BOUND


@pytest.mark.parametrize("name", ["llama3", "qwen2", "gemma3"])
def test_a_gguf_file_gives_a_configuration_that_transformers_reads(name, tmp_path):
    weights = random_weights(CONFIGS[name])
    config, ours = our_logits(write_gguf(tmp_path / "model.gguf", CONFIGS[name], weights))
    written = write_huggingface(tmp_path / "written", to_huggingface(config), weights)
    assert np.abs(ours - their_logits(written)).max() <= BOUND


def test_a_model_that_transformers_saved_itself(tmp_path):
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        sliding_window=24,
        query_pre_attn_scalar=32,
        max_position_embeddings=512,
        final_logit_softcapping=10.0,
    )
    torch.manual_seed(3)
    Gemma3ForCausalLM(config).save_pretrained(tmp_path)
    _, ours = our_logits(tmp_path)
    assert np.abs(ours - their_logits(tmp_path)).max() <= BOUND
