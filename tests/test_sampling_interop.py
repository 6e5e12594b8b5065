"""The pipeline equals Hugging Face's processors where both mean the same."""

# ruff: noqa: PLC0415  (the oracles are imported inside the tests: `make test-interop` only)

import numpy as np
import pytest

from fewbit.sampling import History, SamplingParams, distribution

pytestmark = pytest.mark.interop

CASES = [
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 40},
    {"temperature": 0.9, "top_p": 0.85},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.5, "min_p": 0.1},
    {"repetition_penalty": 1.3, "temperature": 0.8, "top_p": 0.95},
]


def huggingface_distribution(logits, tokens, case):
    """Apply the processors in the order in which `generate` builds their list."""
    import torch
    from transformers.generation import logits_process as hf

    scores = torch.tensor(logits)[None]
    ids = torch.tensor(tokens, dtype=torch.long)[None]
    steps = {
        "repetition_penalty": hf.RepetitionPenaltyLogitsProcessor,
        "temperature": hf.TemperatureLogitsWarper,
        "top_k": hf.TopKLogitsWarper,
        "top_p": hf.TopPLogitsWarper,
        "min_p": hf.MinPLogitsWarper,
    }
    for name, processor in steps.items():
        if name in case:
            scores = processor(case[name])(ids, scores)
    return torch.softmax(scores.double(), dim=-1)[0].numpy()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_distributions_equal_hugging_face(case, seed):
    """Their cumulative sums are float32: 2^-20 of a token at the edge of top-p may differ."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, 5000).astype(np.float32)
    tokens = rng.integers(0, 5000, 50).astype(np.int32)
    found = distribution(logits, SamplingParams(**case), History(tokens, 20))
    expected = huggingface_distribution(logits, tokens, case)
    np.testing.assert_array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-12)
