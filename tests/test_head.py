"""EAGLE-3 heads on disk: both forms, what is refused, and the numbers, by a few lines of NumPy."""

import json

import numpy as np
import pytest
from head_cases import KEPT, SIZES, head_weights, write_native, write_speculators
from safetensors.numpy import load_file, save_file
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.errors import BadFileError, MissingError, UnsupportedError, UsageError
from fewbit.model import memory
from fewbit.model.head import HeadConfig, is_head
from fewbit.model.head_runner import head_runner
from fewbit.model.head_source import is_head_folder, open_head
from fewbit.model.head_write import write_head
from fewbit.model.pieces import Piece, step_of
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.runtime.memory import Available
from fewbit.runtime.step import PAGE

FORMS = {"native": write_native, "speculators": write_speculators}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("heads")
    write_huggingface(path / "target", SIZES, random_weights(SIZES))
    return path


def target_of(folder, executor="native", after=(1, 2, 3), **settings):
    fields = {"context": 128, "executor": executor, "states": lambda layers: after, **settings}
    return runner_of(open_model(folder), RunSettings(**fields))


# --- the truth ------------------------------------------------------------------------------------


def norm(x, weight, eps=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotated(x, theta=5000.0):
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def truth(weights, tokens, states, drafted=0, *, before=False, output=False, layers=1):
    """Run rows as one text, each drafted row with the state that the row before it made."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    if "input_norm.weight" in w:
        states = norm(states, w["input_norm.weight"])
    hidden = states @ w["fc.weight"].T + w.get("fc.bias", 0.0)
    for _ in range(drafted + 1):
        x = first_layer(w, tokens[: len(hidden)], hidden, before=before)
        for n in range(1, layers):
            own = of_layer(w, n)
            read = norm(x, own["input_layernorm.weight"])
            x = mixed_and_gated(own, read, x)
        final = norm(x, w["norm.weight"])
        logits, made = final @ w["lm_head.weight"].T, final if output else x
        hidden = np.vstack([hidden, made[-1:]])
    return logits, made


def of_layer(w, n):
    prefix = f"layers.{n}."
    return {name.removeprefix(prefix): v for name, v in w.items() if name.startswith(prefix)}


def first_layer(w, tokens, hidden, *, before):
    own = of_layer(w, 0)
    embedded = norm(w["embed_tokens.weight"][tokens], own["input_layernorm.weight"])
    normed = norm(hidden, own["hidden_norm.weight"])
    return mixed_and_gated(own, np.hstack([embedded, normed]), normed if before else hidden)


def mixed_and_gated(w, read, x):
    rows, size = len(read), 16
    q, k, v = ((read @ w[f"self_attn.{s}_proj.weight"].T).reshape(rows, -1, size) for s in "qkv")
    q, k = rotated(q), np.repeat(rotated(k), 3, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) / 4.0
    scores[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    mixed = np.einsum("hij,jhd->ihd", chances, np.repeat(v, 3, axis=1)).reshape(rows, -1)
    x = x + mixed @ w["self_attn.o_proj.weight"].T
    inner = norm(x, w["post_attention_layernorm.weight"])
    gate = inner @ w["mlp.gate_proj.weight"].T
    up = inner @ w["mlp.up_proj.weight"].T
    return x + (gate / (1 + np.exp(-gate)) * up) @ w["mlp.down_proj.weight"].T


def run_rows(runner, tokens, hidden, position=0):
    pages = np.arange(2, dtype=np.int32)
    ids, wanted = np.array(tokens, np.int32), np.arange(len(tokens), dtype=np.int32)
    logits, made = runner.step(step_of([Piece(ids, position, pages, wanted)]), hidden)
    return logits.copy(), made


CASES = {
    "plain": ({}, {}),
    "normed before the residual": ({"norm_before_residual": True}, {"before": True}),
    "normed at the end": ({"norm_output": True}, {"output": True}),
    "states normed": ({"norm_before_fc": True}, {}),
    "three layers": ({}, {"layers": 3}),
}


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_its_authors_describe(folder, tmp_path, case, executor):
    """In float32 with 16-bit keys: errors of some 1e-3 of the values, not of their size."""
    fields, options = CASES[case]
    layers = options.get("layers", 1)
    weights, rng = head_weights(SIZES, layers=layers), np.random.default_rng(1)
    if layers > 1:
        fields = {"transformer_layer_config": {**SIZES, "num_hidden_layers": layers}}
    if "norm_before_fc" in fields:
        weights["input_norm.weight"] = (1 + 0.1 * rng.standard_normal(144)).astype(np.float32)
    path = write_speculators(tmp_path / "head", SIZES, weights, **fields)
    runner = head_runner(open_head(path), target_of(folder / "target", executor), pages=4)
    assert {kernel.format for kernel in runner.kernels} == {"f32"}
    tokens = rng.integers(0, 320, 12)
    states = rng.standard_normal((10, 144)).astype(np.float32)
    logits, made = run_rows(runner, tokens[:10], runner.fuse(states))
    expected, states_made = truth(weights, tokens[:10], states.astype(np.float64), **options)
    assert np.abs(logits - expected).max() < 0.02 * np.abs(expected).max()
    assert np.abs(made - states_made).max() < 0.02 * np.abs(states_made).max()
    for i in (10, 11):  # two drafted rows, each with the state of the one before
        logits, made = run_rows(runner, tokens[i : i + 1], made[-1:], position=i)
    expected, _ = truth(weights, tokens, states.astype(np.float64), 2, **options)
    assert np.abs(logits[-1] - expected[-1]).max() < 0.02 * np.abs(expected[-1]).max()


def test_the_truth_tells_the_cases_apart():
    """The negative control of the test above."""
    weights, rng = head_weights(SIZES, layers=3), np.random.default_rng(1)
    tokens, states = rng.integers(0, 320, 12), rng.standard_normal((10, 144))
    found = [
        truth(weights, tokens, states, 2, **options)[0][-1]
        for options in ({}, {"before": True}, {"output": True}, {"layers": 2}, {"layers": 3})
    ]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert np.abs(one - other).max() > 0.1 * np.abs(one).max()


# --- the target's states --------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_states_are_those_of_whole_layers(folder, executor):
    """Whatever rows and pages: bit for bit, on the native executor."""
    runner = target_of(folder / "target", executor, after=(0, 1, 3))
    ids = np.random.default_rng(2).integers(0, 320, 20).astype(np.int32)
    pages, nothing = np.arange(2, dtype=np.int32), np.empty(0, np.int32)
    runner.executor.step(step_of([Piece(ids, 0, pages, nothing)]))
    whole = runner.states(np.arange(20, dtype=np.int32))
    assert whole.shape == (20, 3 * 48)
    source = runner.source
    table = source.read("embed.weight").codes.view("<f4").reshape(320, 48)
    assert np.array_equal(whole[:, :48], table[ids])
    pieces = []
    for at in range(0, 20, 7):
        runner.executor.step(step_of([Piece(ids[at : at + 7], at, pages, nothing)]))
        pieces.append(runner.states(np.arange(min(7, 20 - at), dtype=np.int32)))
    assert np.array_equal(np.vstack(pieces), whole) or executor == "reference"
    assert np.array_equal(runner.states(np.array([5, 1], np.int32)), pieces[-1][[5, 1]])


def test_taps_change_no_logit(folder):
    ids = np.random.default_rng(3).integers(0, 320, 30)
    plain = runner_of(open_model(folder / "target"), RunSettings(context=128))
    assert not plain.gives_states
    tapped = target_of(folder / "target")
    assert tapped.gives_states
    for one, other in zip(plain.score(ids), tapped.score(ids), strict=True):
        assert np.array_equal(one, other)


# --- files ----------------------------------------------------------------------------------------


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
