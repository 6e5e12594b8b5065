import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_models import CONFIGS, HUGGINGFACE_ONLY, random_weights, write_gguf, write_huggingface

from fewbit.errors import BadFileError, MissingError, UnsupportedError
from fewbit.formats.registry import decode
from fewbit.model.weights import interleaved_rows, open_model
from fewbit.runtime.reference import rope, rope_table


def folder_of(tmp_path, name, drop=(), add=(), **changes):
    config = {**CONFIGS[name], **changes}
    weights = {n: w for n, w in random_weights(CONFIGS[name]).items() if n not in drop}
    return write_huggingface(tmp_path / name, config, weights | dict(add))


def test_rotating_neighbours_of_permuted_rows_is_rotating_halves():
    """What the permutation is for: llama.cpp's rotation on its rows equals ours on ours."""
    heads, width, rows = 3, 8, 5
    table = rope_table(np.arange(rows, dtype=np.int32), (1.0, 0.5, 0.25, 0.125), 1.0)
    ours = np.random.default_rng(0).standard_normal((rows, heads * width)).astype(np.float32)
    order = interleaved_rows(heads, width)
    stored = np.empty_like(ours)
    stored[:, order] = ours
    pairs = stored.reshape(rows, heads, width // 2, 2).astype(np.float64)
    cos, sin = (part.astype(np.float64)[:, None] for part in np.split(table, 2, axis=1))
    a, b = pairs[..., 0], pairs[..., 1]
    turned = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(rows, -1)
    expected = turned.astype(np.float32)[:, order]
    np.testing.assert_array_equal(rope(ours, table, width), expected)


def test_the_order_is_a_permutation_within_heads():
    order = interleaved_rows(2, 6)
    assert order.tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


@pytest.mark.parametrize("name", [n for n in CONFIGS if n not in HUGGINGFACE_ONLY])
def test_a_gguf_file_holds_the_same_tensors(name, tmp_path):
    weights = random_weights(CONFIGS[name])
    stored = open_model(write_gguf(tmp_path / "model.gguf", CONFIGS[name], weights))
    plain = open_model(write_huggingface(tmp_path / name, CONFIGS[name], weights))
    assert tuple(stored.slots) == tuple(plain.slots)
    assert stored.unused == plain.unused == ()
    gemma = "gemma" in name
    for slot in plain.slots:
        ours, theirs = decode(plain.read(slot)), decode(stored.read(slot))
        assert ours.shape == theirs.shape == plain.read(slot).shape
        if gemma and slot.endswith("_norm.weight"):
            # The file holds fl(w + 1); what counts is that adding 1 gives the stored value again.
            np.testing.assert_array_equal(theirs + np.float32(1), ours + np.float32(1))
        else:
            np.testing.assert_array_equal(theirs, ours)


def test_names_are_those_of_hugging_face(tmp_path):
    folder = folder_of(tmp_path, "gemma3")
    source = open_model(folder)
    names = {source.huggingface_name(slot) for slot in source.slots}
    assert names == set(load_file(folder / "model.safetensors"))


def test_vectors_have_one_row(tmp_path):
    source = open_model(folder_of(tmp_path, "qwen2"))
    assert source.read("layers.0.q.bias").shape == (1, 64)
    assert source.read("final_norm.weight").shape == (1, 64)
    assert source.info("final_norm.weight").shape == (64,)


def test_a_missing_tensor_is_named(tmp_path):
    name = "model.layers.2.mlp.up_proj.weight"
    with pytest.raises(MissingError, match=name.replace(".", r"\.")):
        open_model(folder_of(tmp_path, "llama", drop=[name]))


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path):
    with pytest.raises(BadFileError, match=r"\(320, 64\), but the configuration .* \(321, 64\)"):
        open_model(folder_of(tmp_path, "llama", vocab_size=321))


def test_a_tensor_inside_a_layer_that_would_be_left_out_is_refused(tmp_path):
    extra = {"model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)}
    with pytest.raises(UnsupportedError, match=r"q_proj\.bias"):
        open_model(folder_of(tmp_path, "llama", add=extra))


def test_tensors_outside_the_layers_are_listed(tmp_path):
    extra = {
        "model.layers.3.self_attn.q_proj.weight": np.zeros((64, 64), np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8, np.float32),
        "mtp.weight": np.zeros((2, 2), np.float32),
    }
    source = open_model(folder_of(tmp_path, "llama", add=extra))
    assert set(source.unused) == {"model.layers.3.self_attn.q_proj.weight", "mtp.weight"}


def test_a_head_beside_a_tied_embedding_is_listed(tmp_path):
    head = {"lm_head.weight": np.zeros((320, 64), np.float32)}
    assert open_model(folder_of(tmp_path, "llama-tied", add=head)).unused == ("lm_head.weight",)


def test_a_configuration_that_is_refused_names_its_file(tmp_path):
    folder = folder_of(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 0}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadFileError, match=r"config\.json: num_hidden_layers is 0"):
        open_model(folder)


@pytest.mark.parametrize("stated", [{"quant_method": "bitsandbytes"}, {}, "awq"])
def test_weights_packed_by_another_tool_are_refused_by_name(tmp_path, stated):
    with pytest.raises(UnsupportedError, match="is quantized by the method"):
        open_model(folder_of(tmp_path, "llama", quantization_config=stated))
