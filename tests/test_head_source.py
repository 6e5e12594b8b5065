"""EAGLE-3 heads on disk: both forms, what a target lends them, and what is refused."""

import json

import numpy as np
import pytest
from head_cases import KEPT, SIZES, head_weights, target_of, write_native, write_speculators
from safetensors.numpy import load_file, save_file
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.errors import BadFileError, MissingError, UnsupportedError, UsageError
from fewbit.model import memory
from fewbit.model.head import HeadConfig, is_head
from fewbit.model.head_runner import head_runner
from fewbit.model.head_source import is_head_folder, open_head
from fewbit.model.head_write import write_head
from fewbit.runtime.memory import Available
from fewbit.runtime.step import PAGE

FORMS = {"native": write_native, "speculators": write_speculators}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("heads")
    write_huggingface(path / "target", SIZES, random_weights(SIZES))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_hold_the_same(tmp_path, form):
    weights = head_weights(SIZES)
    path = FORMS[form](tmp_path / "head", SIZES, weights)
    assert is_head_folder(path)
    source = open_head(path)
    assert source.config.after == (1, 2, 3)
    assert source.config.layer.head_rows == len(KEPT)
    assert np.array_equal(source.support, KEPT)
    assert source.columns is None
    assert source.name == "eagle3:head"
    q = weights["layers.0.self_attn.q_proj.weight"]
    left = source.tensors["layers.0.q_embed.weight"].codes.view("<f4")
    right = source.tensors["layers.0.q_state.weight"].codes.view("<f4")
    assert np.array_equal(np.hstack([left, right]), q)


def test_what_is_written_is_read_and_is_what_the_form_asks_for(tmp_path):
    weights = head_weights(SIZES, own_embedding=False)
    first = open_head(write_speculators(tmp_path / "one", SIZES, weights))
    config = HeadConfig(layer=first.config.layer, target_hidden=48, after=(1, 2, 3))
    write_head(tmp_path / "two", config, weights, KEPT.astype(np.int32), "the-target")
    second = open_head(tmp_path / "two")
    assert second.config == first.config
    assert second.tensors.keys() == first.tensors.keys()
    for slot, tensor in first.tensors.items():
        assert np.array_equal(second.tensors[slot].codes, tensor.codes)
    stated = json.loads((tmp_path / "two" / "config.json").read_text())
    assert stated["norm_before_residual"] is False
    assert stated["speculators_config"]["algorithm"] == "eagle3"
    assert {"proposal_methods", "default_proposal_method", "verifier"} <= stated[
        "speculators_config"
    ].keys()
    stored = load_file(tmp_path / "two" / "model.safetensors")
    assert np.array_equal(np.flatnonzero(stored["t2d"]), KEPT)
    assert np.array_equal(stored["d2t"] + np.arange(len(KEPT)), KEPT)


def test_tokens_out_of_order_keep_their_rows(tmp_path):
    order = KEPT[::-1].copy()
    source = open_head(write_speculators(tmp_path / "head", SIZES, head_weights(SIZES), order))
    assert np.array_equal(source.support, KEPT)
    assert np.array_equal(source.columns, np.arange(len(KEPT))[::-1])


def test_the_usual_layers():
    config = CONFIGS["llama"]
    assert is_head({"architectures": ["LlamaForCausalLMEagle3"]})
    assert not is_head(config)
    taps = HeadConfig(layer=None, target_hidden=1, after=None).taps
    assert taps(32) == (2, 16, 29)
    with pytest.raises(UnsupportedError, match="the target has 2"):
        taps(2)


def test_what_it_lacks_is_the_targets(folder, tmp_path):
    every = np.arange(320)
    weights = head_weights(SIZES, every, own_embedding=False)
    del weights["lm_head.weight"]
    path = write_speculators(tmp_path / "head", SIZES, weights, every)
    target = target_of(folder / "target")
    runner = head_runner(open_head(path), target, pages=2)
    own = {kernel.slot for kernel in runner.kernels}
    assert {"embed.weight", "head.weight"} <= own
    assert runner.executor.matrices["head.weight"] is target.executor.matrices["head.weight"]


def test_matrices_that_runs_divide_are_rounded(tmp_path):
    config = CONFIGS["llama"]
    target = write_huggingface(tmp_path / "target", config, random_weights(config))
    path = write_speculators(tmp_path / "head", config, head_weights(config))
    runner = head_runner(open_head(path), target_of(target), pages=2)
    assert {kernel.format for kernel in runner.kernels} == {"q8_0"}


def test_memory_is_counted_before_it_is_taken(folder, tmp_path, monkeypatch):
    path = write_speculators(tmp_path / "head", SIZES, head_weights(SIZES, own_embedding=False))
    target = target_of(folder / "target")
    runner = head_runner(open_head(path), target, pages=3, waiting=100)
    own = {slot: m for slot, m in runner.executor.matrices.items() if slot != "embed.weight"}
    fused = sum(kernel.bytes for kernel in runner.kernels if kernel.slot == "hidden.weight")
    vectors = 4 * 4 * SIZES["hidden_size"]  # three norms of the layer and the last one
    plan = runner.memory
    assert plan.weights == sum(m.nbytes for m in own.values()) + fused + vectors
    assert plan.store == runner.executor.store_bytes
    assert plan.states == 100 * 3 * SIZES["hidden_size"] * 4
    assert plan.needed == plan.weights + plan.store + plan.workspace + plan.states
    assert "states of its target" in plan.described
    theirs = target.loading.memory  # of which the store and the workspace are not touched yet
    enough = plan.needed + theirs.store + theirs.workspace
    left = [enough]
    small = "left in a planted cgroup"
    monkeypatch.setattr(memory, "available_memory", lambda: Available(left[0], small))
    head_runner(open_head(path), target, pages=3, waiting=100)
    left[0] -= 1
    with pytest.raises(UsageError, match=r"The head .* needs .* its target .* in a planted cgroup"):
        head_runner(open_head(path), target, pages=3, waiting=100)


def damaged(tmp_path, change=lambda stated: None, tensors=lambda found: None):
    """Write a head, and change its configuration and tensors in place."""
    path = write_speculators(tmp_path / "head", SIZES, head_weights(SIZES))
    stated = json.loads((path / "config.json").read_text())
    change(stated)
    (path / "config.json").write_text(json.dumps(stated))
    found = dict(load_file(path / "model.safetensors"))
    tensors(found)
    save_file(found, path / "model.safetensors")
    return path


def setting(**fields):
    return lambda target: target.update(fields)


LAYER = {**SIZES, "num_hidden_layers": 1}

BAD = {
    "two layers, of which one is there": (
        setting(transformer_layer_config={**LAYER, "num_hidden_layers": 2}),
        None,
        MissingError,
        "'layers.1",
    ),
    "no layer": (
        setting(transformer_layer_config={**LAYER, "num_hidden_layers": 0}),
        None,
        BadFileError,
        "num_hidden_layers",
    ),
    "a window in the second layer": (
        setting(
            transformer_layer_config={
                **LAYER,
                "num_hidden_layers": 2,
                "layer_types": ["full_attention", "sliding_attention"],
            }
        ),
        None,
        UnsupportedError,
        "looks back over everything",
    ),
    "a window": (
        setting(transformer_layer_config={**LAYER, "layer_types": ["sliding_attention"]}),
        None,
        UnsupportedError,
        "layer_types",
    ),
    "a norm for each state": (setting(fc_norm=True), None, UnsupportedError, "fc_norm"),
    "no states": (
        setting(eagle_config={"use_aux_hidden_state": False}),
        None,
        UnsupportedError,
        "use_aux_hidden_state",
    ),
    "two layers to look at": (
        setting(eagle_aux_hidden_state_layer_ids=[1, 2]),
        None,
        BadFileError,
        "expected 3 numbers",
    ),
    "more tokens than the target": (setting(draft_vocab_size=321), None, BadFileError, "321"),
    "no number": (setting(draft_vocab_size="many"), None, BadFileError, "draft_vocab_size"),
    "fewer tokens than rows": (setting(draft_vocab_size=15), None, BadFileError, "d2t"),
    "an offset outside": (
        None,
        lambda found: found["d2t"].__setitem__(3, 1 << 62),
        BadFileError,
        "maps token 3 outside",
    ),
    "a token twice": (
        None,
        lambda found: found["d2t"].__setitem__(1, 0),
        BadFileError,
        "two tokens to the target's 1",
    ),
    "offsets in another type": (
        None,
        lambda found: found.update(d2t=found["d2t"].astype(np.int32)),
        BadFileError,
        "must be i64",
    ),
    "no offsets": (None, lambda found: found.pop("d2t"), MissingError, "'d2t'"),
    "no fusing": (None, lambda found: found.pop("fc.weight"), MissingError, "fc.weight"),
    "a norm of another size": (
        None,
        lambda found: found.update({"norm.weight": np.ones(47, np.float32)}),
        BadFileError,
        r"shape \(1, 47\)",
    ),
    "a tensor too many": (
        None,
        lambda found: found.update({"layers.1.mlp.gate_proj.weight": np.ones((2, 2), np.float32)}),
        UnsupportedError,
        "has no place in an EAGLE-3 head of 1 layer,",
    ),
    "a norm that nothing asks for": (
        None,
        lambda found: found.update({"input_norm.weight": np.ones(144, np.float32)}),
        UnsupportedError,
        "as it is configured",
    ),
    "a matrix of integers": (
        None,
        lambda found: found.update({"fc.weight": np.ones((48, 144), np.int8)}),
        UnsupportedError,
        "is in i8",
    ),
}


def keep(_):
    return None


@pytest.mark.parametrize("case", BAD)
def test_a_head_that_cannot_be_right_is_refused(tmp_path, case):
    change, tensors, error, words = BAD[case]
    path = damaged(tmp_path, change or keep, tensors or keep)
    with pytest.raises(error, match=words):
        open_head(path)


def test_what_is_no_head_is_refused(folder, tmp_path):
    assert not is_head_folder(folder / "target")
    with pytest.raises(UnsupportedError, match="no draft head"):
        open_head(folder / "target")
    with pytest.raises(MissingError, match="no folder"):
        open_head(tmp_path / "nowhere")


def test_a_head_of_another_target_is_refused(folder, tmp_path):
    weights = head_weights(SIZES)
    target = target_of(folder / "target")
    wide = write_speculators(
        tmp_path / "wide",
        SIZES,
        {**weights, "fc.weight": np.ones((48, 192), np.float32)},
        target_hidden_size=64,
    )
    with pytest.raises(UnsupportedError, match="hidden size of 64"):
        head_runner(open_head(wide), target, pages=PAGE)
    large = {**SIZES, "vocab_size": 321}
    other = {**weights, "embed_tokens.weight": np.ones((321, 48), np.float32)}
    with pytest.raises(UnsupportedError, match="vocabulary of 321"):
        head_runner(open_head(write_speculators(tmp_path / "large", large, other)), target, pages=2)
    deep = write_speculators(
        tmp_path / "deep", SIZES, weights, eagle_aux_hidden_state_layer_ids=[2, 3, 4]
    )
    with pytest.raises(UnsupportedError, match="after layers 2, 3, 4"):
        head_runner(open_head(deep), target, pages=2)
