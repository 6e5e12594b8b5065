"""How far the output moves when matrices are replaced, against whole runs and float64."""

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.evaluate.language.divergence import compare
from fewbit.formats.registry import F32, decode, encode, parse_format
from fewbit.model.binding import bind
from fewbit.model.pieces import Piece, step_of
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.quantization.probing import ProbeModel, divergence
from fewbit.runtime.chooser import choose
from fewbit.runtime.native import NativeExecutor

RNG = np.random.default_rng(0)
WINDOWS = [RNG.integers(0, 320, n).astype(np.int32) for n in (40, 25)]


def rounded(source, slot, form="int3-g32"):
    return encode(decode(encode(decode(source.read(slot)), parse_format(form))), F32)


@pytest.mark.parametrize("moved", [1e-4, 1e-2, 1.0])
def test_divergence_is_that_of_float64(moved):
    """Elements near 1 are rounded by 2^-24; the sum of blocks of 8192 loses some of these."""
    logits = (RNG.standard_normal((20, 20_000)) * 3).astype(np.float32)
    logs = (logits - np.log(np.exp(logits.astype(float)).sum(1, keepdims=True))).astype(np.float32)
    other = logits + np.float32(moved) * RNG.standard_normal(logits.shape).astype(np.float32)
    truth = compare(logs, other, np.zeros(20, np.int32)).divergence
    assert np.allclose(divergence(logs, other), truth, rtol=1e-5, atol=2**-24)


def test_divergence_of_the_same_and_of_shifted_logits_is_nothing():
    logs = np.log(np.full((2, 5), 0.2, np.float32))
    assert np.all(divergence(logs, logs) < 1e-7)
    assert np.all(divergence(logs, logs + np.float32(7)) < 1e-7)


@pytest.fixture(scope="module", params=["llama-tied", "llama-biased", "gemma3-long-window"])
def source(request, tmp_path_factory):
    config = CONFIGS[request.param]
    folder = tmp_path_factory.mktemp("probed") / "m"
    weights = {name: w * np.float32(1.5) for name, w in random_weights(config).items()}
    with open_model(write_huggingface(folder, config, weights)) as opened:
        yield opened


def whole(tmp_path, source, replaced):
    """The slow truth: the replaced model written out, loaded anew, and compared in float64."""
    weights = {}
    for slot in source.slots:
        tensor = replaced.get(slot) or source.read(slot)
        values = decode(tensor)
        shape = source.info(slot).shape
        weights[source.huggingface_name(slot)] = values.reshape(shape)
    folder = write_huggingface(tmp_path / "whole", source.checkpoint.facts.config, weights)
    with open_model(folder) as opened:
        one, other = (runner_of(s, RunSettings(threads=1)) for s in (source, opened))
        return [
            np.mean(
                np.concatenate(
                    [
                        compare(a.copy(), b, np.zeros(len(a), np.int32)).divergence
                        for a, b in zip(one.score(tokens), other.score(tokens), strict=True)
                    ]
                )
            )
            for tokens in WINDOWS
        ]


@pytest.mark.parametrize(
    "slots",
    [
        ("layers.0.q.weight",),
        ("layers.1.gate.weight", "layers.1.up.weight"),
        ("layers.2.down.weight",),
        ("embed.weight",),
        ("embed.weight", "layers.1.o.weight"),
        ("layers.1.attn_norm.weight",),
    ],
)
def test_a_probe_is_the_whole_model_with_the_matrix_replaced(tmp_path, source, slots):
    replaced = {slot: rounded(source, slot) for slot in slots if "norm" not in slot}
    for slot in slots:
        if "norm" in slot:
            replaced[slot] = encode(decode(source.read(slot)) * np.float32(1.25), F32)
    found = ProbeModel(source, WINDOWS, 1).measure(replaced)
    assert found == pytest.approx(whole(tmp_path, source, replaced), rel=1e-3)
    assert np.all(found > 1e-6)


def test_a_probe_that_changes_nothing_measures_nothing(source):
    model = ProbeModel(source, WINDOWS, 1)
    same = {slot: source.read(slot) for slot in ("layers.0.q.weight", "embed.weight")}
    assert model.measure(same) == pytest.approx([0, 0], abs=1e-7)
    assert model.measure({}) == pytest.approx([0, 0], abs=1e-7)


def test_inputs_are_squared_over_all_tokens(source):
    model = ProbeModel(source, WINDOWS, 1)
    tap = (1, "attn_norm")
    binding = bind(source, model.program, choose)
    executor = NativeExecutor(binding, pages=2, threads=1, taps=frozenset({tap}))
    rows = []
    for tokens in WINDOWS:
        page, last = np.zeros(1, np.int32), np.zeros(1, np.int32)
        executor.step(step_of([Piece(tokens, 0, page, last)]))
        rows.append(executor.tap(*tap))
    truth = np.mean(np.concatenate(rows).astype(float) ** 2, axis=0)
    for site in ("q", "k", "v"):
        assert model.squares[f"layers.1.{site}.weight"] == pytest.approx(truth, rel=1e-5)
    head = "embed.weight" if source.config.tied else "head.weight"
    assert model.squares.keys() == {
        s for s in model.program.slots() if s[0] == "l" and not ("norm" in s or "bias" in s)
    } | {head}
