"""Scales for keys and values that compressed-tensors stored stay with the model."""

import numpy as np
import pytest
from compressed_cases import Q, quantization, scheme
from packed_models import (
    compressed,
    random_integers,
    write_folder,
)
from tiny_models import CONFIGS, random_weights

from fewbit.errors import BadFileError
from fewbit.model.weights import open_model
from fewbit.records.kv import KvForm, KvScales

WEIGHTS = scheme()


def with_kept(folder, scheme, kept):
    """The tiny Llama with a packed matrix, and stored scales for keys and values."""

    matrix = random_integers(1, (64, 64), 4, 32, symmetric=True)
    tensors = dict(random_weights(CONFIGS["llama"])) | kept
    del tensors[f"{Q}.weight"]
    tensors |= {f"{Q}.{n}": a for n, a in compressed(matrix, symmetric=True).items()}
    stated = quantization(WEIGHTS, kv_cache_scheme=scheme)
    config = {**CONFIGS["llama"], "quantization_config": stated}
    return write_folder(folder / "m", config, tensors)


KEPT = {"num_bits": 8, "type": "float", "strategy": "tensor"}

TWO_OF_EACH_LAYER = {
    f"model.layers.{layer}.self_attn.{side}_scale": np.float32([0.5 + layer])
    for layer in range(3)
    for side in "kv"
}


@pytest.mark.parametrize(("kind", "form"), [("float", KvForm.FP8), ("int", KvForm.INT8)])
def test_stored_scales_of_keys_and_values_stay_with_the_model(tmp_path, kind, form):
    with open_model(with_kept(tmp_path, KEPT | {"type": kind}, TWO_OF_EACH_LAYER)) as source:
        rows = tuple((0.5 + layer,) * 2 for layer in range(3))
        assert source.kv_scales == KvScales(form=form, keys=rows, values=rows)
        assert source.checkpoint.notes == ()
        assert not any("k_scale" in name for name in source.checkpoint.tensors)


@pytest.mark.parametrize(
    ("scheme", "change"),
    [
        (KEPT, {"model.layers.0.self_attn.q_scale": np.float32([1])}),
        (KEPT | {"strategy": "attn_head"}, {}),
        (KEPT | {"num_bits": 4}, {}),
        (None, {}),
    ],
)
def test_stored_scales_of_another_kind_are_left_out_and_said(tmp_path, scheme, change):
    with open_model(with_kept(tmp_path, scheme, TWO_OF_EACH_LAYER | change)) as source:
        assert source.kv_scales is None
        assert f"{6 + len(change)} stored scales" in source.checkpoint.notes[0]


def test_a_stored_scale_that_is_no_number_is_refused(tmp_path):
    wrong = {"model.layers.1.self_attn.v_scale": np.float32([0])}
    with pytest.raises(BadFileError, match="not one positive number"):
        open_model(with_kept(tmp_path, KEPT, TWO_OF_EACH_LAYER | wrong))
