"""What EAGLE-3 heads compute, by a few lines of NumPy, and the states of their targets."""

import numpy as np
import pytest
from head_cases import SIZES, head_weights, target_of, write_speculators
from tiny_models import random_weights, write_huggingface

from fewbit.model.head_runner import head_runner
from fewbit.model.head_source import open_head
from fewbit.model.pieces import Piece, step_of
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("heads")
    write_huggingface(path / "target", SIZES, random_weights(SIZES))
    return path


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
