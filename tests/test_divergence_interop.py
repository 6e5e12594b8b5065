"""Divergence of llama.cpp's logits by its own tool's arithmetic, and of a file in both engines."""

import numpy as np
import pytest
from test_divergence import of_16_bits
from test_export_interop import TOKENS, exported, llama_cpp_logits, our_logits
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.evaluate.language.divergence import compare
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def logits(tmp_path_factory):
    """Logits of a source and of a candidate in q4_0, in llama.cpp and here."""
    folder = tmp_path_factory.mktemp("divergence")
    weights = random_weights(CONFIGS["llama"])
    weights["lm_head.weight"] *= np.float32(2)  # a model that is sure of something
    source = write_huggingface(folder / "source", CONFIGS["llama"], weights)
    with open_model(source) as model:
        quantize(model, find("rtn-q4_0"), folder / "small")
    paths = (source, folder / "small")
    files = [exported(path, folder / f"{path.name}.gguf", "gguf") for path in paths]
    return [llama_cpp_logits(file) for file in files], [our_logits(path) for path in paths]


def test_from_the_same_logits_both_arithmetics_agree_to_a_thousandth(logits):
    (source, candidate), _ = logits
    ours = compare(source, candidate, TOKENS).divergence
    assert ours.mean() > 0.01
    assert abs(ours.mean() - of_16_bits(source, candidate).mean()) < 0.001


def test_the_same_file_diverges_alike_in_both_engines(logits):
    """Both round the inputs of layers to int8 per 32; the rest of the order of sums is each's."""
    theirs, ours = (compare(*pair, TOKENS).divergence.mean() for pair in logits)
    assert theirs == pytest.approx(ours, rel=0.05)


def test_errors_that_are_larger_by_a_tenth_are_told_apart(logits):
    """The negative control of the test above."""
    (source, candidate), _ = logits
    larger = source + np.float32(1.1) * (candidate - source)
    planted = compare(source, larger, TOKENS).divergence.mean()
    assert planted != pytest.approx(compare(*logits[1], TOKENS).divergence.mean(), rel=0.05)
