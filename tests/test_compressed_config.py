"""What compressed-tensors' configuration says of each matrix, and what of it cannot be followed."""

import json

import numpy as np
import pytest
from compressed_cases import Q, quantization, scheme
from packed_models import (
    compressed,
    packed_llama,
    random_integers,
)

from fewbit.checkpoint.compressed_config import Targets, read_config
from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import BadFileError, MissingError, UnsupportedError
from fewbit.formats.registry import decode
from fewbit.model.weights import open_model


def test_groups_are_found_by_name_then_pattern_then_class(tmp_path):
    groups = quantization(
        scheme(4) | {"targets": ["re:.*self_attn.*", "model.layers.0.mlp.up_proj"]},
        scheme(8, None),
    )
    config = read_config(groups, "config.json")
    targets = Targets(config, "config.json")
    assert targets.of(Q).weights.num_bits == 4
    assert targets.of("model.layers.0.mlp.up_proj").weights.num_bits == 4
    assert targets.of("model.layers.1.mlp.up_proj").weights.num_bits == 8
    with pytest.raises(BadFileError, match="no config group"):
        targets.of("model.embed_tokens")

    names = [Q, "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj"]
    sizes = [((64, 64), 4, 32), ((96, 64), 4, 32), ((64, 96), 8, None)]
    matrices = {
        name: random_integers(i, *size, symmetric=True)
        for i, (name, size) in enumerate(zip(names, sizes, strict=True))
    }
    folder = packed_llama(tmp_path / "m", lambda m: compressed(m, symmetric=True), groups, matrices)
    with open_checkpoint(folder) as checkpoint:
        for name, matrix in matrices.items():
            assert np.array_equal(decode(checkpoint.read(f"{name}.weight")), matrix.values())


@pytest.mark.parametrize(
    "pattern", ["re:(a+)+$", "re:(.*)*x", "re:.*.*.*.*.*x", r"re:(a)\1", "re:" + "a" * 3000, "re:("]
)
def test_a_pattern_that_could_run_for_ever_is_refused(pattern):
    groups = quantization(scheme() | {"targets": [pattern]})
    with pytest.raises(UnsupportedError, match="names modules by"):
        Targets(read_config(groups, "config.json"), "config.json")


@pytest.mark.parametrize(
    "pattern",
    [
        r"re:.*self_attn\.(q|k|v|o)_proj$",
        r"re:model\.layers\.\d+\.mlp\.[a-z_+*]+",
        "re:(?!.*lm_head).*",
    ],
)
def test_patterns_of_real_files_are_taken(pattern):
    Targets(read_config(quantization(scheme() | {"targets": [pattern]}), "c"), "c")


@pytest.mark.parametrize(
    ("stated", "error", "message"),
    [
        ({"config_groups": {"g": {"targets": "Linear"}}}, BadFileError, "cannot be read"),
        ({"config_groups": {}}, BadFileError, "no config group"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, UnsupportedError, "transforms"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, UnsupportedError, "sparse"),
        ({"config_groups": {"g": scheme(9)}}, UnsupportedError, "has 9 bits"),
        ({"config_groups": {"g": {"targets": ["Linear"]}}}, UnsupportedError, "does not say how"),
    ],
)
def test_configurations_that_cannot_be_followed_are_refused(tmp_path, stated, error, message):
    folder = packed_llama(
        tmp_path / "m",
        lambda m: compressed(m, symmetric=True),
        quantization(scheme()) | stated,
        {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)},
    )
    with pytest.raises(error, match=message):
        open_model(folder)


def test_the_configuration_leaves_out_how_weights_are_packed(tmp_path):
    matrices = {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)}
    folder = packed_llama(
        tmp_path / "m", lambda m: compressed(m, symmetric=True), quantization(scheme()), matrices
    )
    with open_checkpoint(folder) as checkpoint:
        assert "quantization_config" in json.loads((folder / "config.json").read_text())
        assert "quantization_config" not in checkpoint.facts.config
        names = list(checkpoint.tensors)
        assert f"{Q}.weight" in names and f"{Q}.weight_packed" not in names
        assert len(checkpoint.digest(f"{Q}.weight")) == 64
        checkpoint.release(f"{Q}.weight")
        with pytest.raises(MissingError):
            checkpoint.read(f"{Q}.weight_packed")
