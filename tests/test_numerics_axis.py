"""The axis of numerics: taps change nothing, shares are true, and faults are located."""

import dataclasses

import numpy as np
import pytest
from brought import as_said
from msgspec.structs import replace
from spoiled import MIXTRAL, arms_of, failed, nothing, spoil, write_pair
from tiny_subjects import letters

from fewbit.calibrate.text import collect
from fewbit.errors import UnsupportedError, UsageError
from fewbit.evaluate.arms import Role, Room
from fewbit.evaluate.machine import taps
from fewbit.evaluate.machine.numerics_axis import NumericsAxis, divergences, overflow
from fewbit.evaluate.machine.routing import Routing, passed
from fewbit.evaluate.machine.taps import Tally, Tapped, Watch, watches
from fewbit.formats.activations import quantize_activations, quantize_static, quantize_tokens
from fewbit.model.runner import RunSettings
from fewbit.program import Mixture
from fewbit.records.base import from_json, to_json
from fewbit.records.measurement import AxisResult
from fewbit.records.numerics import SiteNumerics

DOCUMENTS = letters(documents=4, characters=120)
AXIS = NumericsAxis(documents=DOCUMENTS, windows=4, window_tokens=80)
RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("numerics"))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("experts"), config=MIXTRAL)


@pytest.fixture(scope="module")
def found(pair):
    return AXIS.run(arms_of(*pair), nothing)


@pytest.fixture(scope="module")
def mixed(mixture):
    return as_said(AXIS, AXIS.run(arms_of(*mixture), nothing))


def test_what_is_kept_is_not_looked_at_again(pair, found, tmp_path):
    AXIS.run(arms_of(*pair, work=tmp_path), nothing)
    told = []
    again = AXIS.run(arms_of(*pair, work=tmp_path), lambda *said: told.append(said))
    assert told == []
    assert replace(again, seconds=0.0) == replace(found, seconds=0.0)
    other = NumericsAxis(documents=DOCUMENTS, windows=2, window_tokens=80)
    other.run(arms_of(*pair, work=tmp_path), lambda *said: told.append(said))
    assert told


def test_a_sound_pair_passes_with_every_place_of_every_layer(found):
    assert failed(found) == {}
    places = {(site.layer, site.site): site.role for site in found.details.sites}
    for layer in (0, 1):
        assert places[layer, "attn_norm"] == places[layer, "activation"] == "input"
        assert (places[layer, "k_rope"], places[layer, "v"]) == ("key", "value")
        assert places[layer, "mlp_add"] == "residual"
    assert places[-1, "final_norm"] == "input"
    for site in found.details.sites:
        assert site.candidate_largest > 0
        assert site.candidate_outlier > 1
        assert site.candidate_not_finite == 0
    assert from_json(AxisResult, to_json(found), name="again") == found


def test_a_model_beside_itself_has_the_same_values(pair):
    found = AXIS.run(arms_of(pair[0], pair[0]), nothing)
    for site in found.details.sites:
        assert site.source_largest == site.candidate_largest
        assert site.source_outlier == site.candidate_outlier


def test_taps_change_no_logit(pair):
    tokens = np.arange(60, dtype=np.int32) + 3
    with arms_of(*pair).open(Role.CANDIDATE, Room(context=64)) as arm:
        plain = np.concatenate([rows.copy() for rows in arm.loaded.runner.score(tokens)])
        tapped = Tapped(arm.loaded.runner, 60)
        seen = [tapped.run(tokens[i : i + 20], i, "", all_logits=True)[0] for i in (0, 20, 40)]
    assert np.array_equal(np.concatenate(seen), plain)


def test_the_reference_executor_is_refused(pair):
    arms = arms_of(*pair, settings=RunSettings(executor="reference"))
    with pytest.raises(UnsupportedError, match="native executor"):
        AXIS.run(arms, nothing)


# --- shares -------------------------------------------------------------------------------------


def tally_of(x, **fields):
    tally = Tally()
    tally.add(x, Watch(layer=0, site="x", buffer="x", role="input", **fields), "here", 10)
    return tally


def test_values_that_become_zero_are_those_whose_code_is_zero():
    x = RNG.standard_normal((6, 96)).astype(np.float32)
    x[:, 3] *= 500  # an outlier in the first run of 32
    x[0, 40] = 0
    codes, _ = quantize_activations(x)
    assert tally_of(x, activations="int8-g32").zeroed == ((codes == 0) & (x != 0)).sum() > 100
    codes, _ = quantize_tokens(x)
    assert tally_of(x, activations="int8-token").zeroed == ((codes == 0) & (x != 0)).sum()
    codes = quantize_static(x, 0.05)
    static = tally_of(x, activations="int8-static", input_scale=0.05)
    assert static.zeroed == ((codes == 0) & (x != 0)).sum()
    assert tally_of(x).zeroed == 0


def test_clipped_values_are_those_beyond_the_last_code_of_a_static_scale():
    scale = np.float32(0.02)
    x = RNG.standard_normal((8, 64)).astype(np.float32)
    beyond = np.abs(np.rint(x / scale)) > 127
    assert tally_of(x, activations="int8-static", input_scale=float(scale)).clipped == beyond.sum()
    assert tally_of(x, activations="int8-g32").clipped == 0


def test_scales_that_clip_nothing_are_measured_and_none_at_all_are_not(pair, found, monkeypatch):
    def with_scales(*given):
        for watch in watches(*given):
            reads = watch.role == "input"
            yield dataclasses.replace(watch, input_scale=1e6) if reads else watch

    monkeypatch.setattr(taps, "watches", lambda *given: tuple(with_scales(*given)))
    (clipped,) = AXIS.run(arms_of(*pair), nothing).slices
    inputs = [site for site in found.details.sites if site.role == "input"]
    assert clipped.name == "numerics/clipped"
    assert [(i.source, i.candidate) for i in clipped.items] == [(0, 0)] * len(inputs)
    assert found.slices == ()


def test_an_outlier_is_told_beside_the_median():
    x = np.ones((4, 64), np.float32)
    x[2, 5] = -300
    assert tally_of(x).outlier == 300
    assert tally_of(np.zeros((1, 32), np.float32)).outlier == 0


def test_a_value_that_is_not_finite_is_located_and_left_out_of_the_rest():
    x = np.ones((4, 64), np.float32)
    x[3, 1] = np.nan
    tally = tally_of(x)
    assert (tally.not_finite, tally.first, tally.largest) == (1, "here, position 13", 1.0)


def test_keys_beyond_fp16_are_caught():
    site = SiteNumerics(
        layer=3,
        site="k_rope",
        role="key",
        source_largest=1.0,
        candidate_largest=70000.0,
        source_outlier=1.0,
        candidate_outlier=1.0,
        candidate_overflow=2,
    )
    found = overflow([site])
    assert not found.passed
    assert "2 keys of layer 3 are beyond what their store can hold (the largest is 7e+04)" in (
        found.found
    )
    watch = Watch(layer=3, site="k_rope", buffer="k", role="key", limit=65504.0)
    tally = Tally()
    tally.add(np.array([[1, 65504, 65536, -1e9]], np.float32), watch, "", 0)
    assert tally.overflow == 2


# --- mixtures -----------------------------------------------------------------------------------


def test_the_result_of_a_mixture_survives_json(mixed):
    assert from_json(AxisResult, to_json(mixed), name="again") == mixed


def test_tokens_of_experts_add_up(mixed):
    experts = mixed.details.experts
    assert len(experts) == 2 * 4
    for layer in (0, 1):
        rows = [e for e in experts if e.layer == layer]
        assert sum(e.source_tokens for e in rows) == 2 * mixed.details.tokens
        assert sum(e.candidate_tokens for e in rows) == 2 * mixed.details.tokens
        assert all(e.same_tokens <= min(e.source_tokens, e.candidate_tokens) for e in rows)
    assert all(e.divergence is None or e.divergence >= 0 for e in experts)


def test_a_non_finite_expert_is_caught_and_located(mixture, tmp_path):
    name = "model.layers.1.block_sparse_moe.experts.2.w1.weight.scales"

    def change(tensors):
        tensors[name][:] = np.nan

    result = AXIS.run(arms_of(mixture[0], spoil(mixture[1], tmp_path / "bad", change)), nothing)
    assert set(failed(result)) == {"numerics/non-finite"}
    sentence = failed(result)["numerics/non-finite"]
    assert "layer 1, site 'mixture'" in sentence
    assert "every row through expert 2 was so" in sentence


def test_a_layer_that_is_not_finite_is_caught_at_its_first_place(pair, tmp_path):
    def change(tensors):
        tensors["model.layers.1.mlp.up_proj.weight.scales"][5] = np.inf

    result = AXIS.run(arms_of(pair[0], spoil(pair[1], tmp_path / "bad", change)), nothing)
    assert (
        "layer 1, site 'activation', first in document 'd"
        in (failed(result)["numerics/non-finite"])
    )


def mixture_op():
    return Mixture(
        layer=0,
        site="mixture",
        out="m",
        x="x",
        router="r",
        experts=(None,) * 8,
        width=1,
        used=1,
        normalized=True,
        activation=None,
    )


class OneMixture:
    ops = (mixture_op(),)


def steps_of(chosen, broken=()):
    """Return what a router and a mixture wrote for rows that pass one expert each."""
    router = np.zeros((len(chosen), 8), np.float32)
    router[np.arange(len(chosen)), chosen] = 5
    out = np.ones((len(chosen), 4), np.float32)
    out[np.isin(chosen, broken)] = np.nan
    return {"r": router, "m": out}


def test_a_rare_experts_harm_is_not_drowned_in_the_mean():
    routing = Routing(OneMixture)
    chosen = [*range(7)] * 14 + [7, 7]  # 7 of eight share 98 of a hundred rows
    divergence = np.where(np.array(chosen) == 7, 5.0, 0.01)
    routing.add(steps_of(chosen), steps_of(chosen), divergence)
    rare = [e for e in routing.experts() if e.rare]
    assert [(e.expert, e.source_tokens, e.divergence) for e in rare] == [(7, 2, 5.0)]
    (rows,) = routing.rare_rows()
    assert divergence[rows].mean() == 5.0
    assert divergence.mean() < 0.2


def test_an_expert_is_accused_only_where_no_row_through_it_was_sound():
    routing = Routing(OneMixture)
    routing.add(steps_of([1, 2, 3]), steps_of([1, 2, 3], broken=[2]), np.zeros(3))
    assert routing.broken() == ((0, 2),)
    routing.add(steps_of([2]), steps_of([2]), np.zeros(1))
    assert routing.broken() == ()


def test_rows_whose_router_is_not_finite_pass_no_expert():
    seen = steps_of([1, 2])
    seen["r"][0, 3] = np.nan
    assert passed(seen, mixture_op()).sum(axis=1).tolist() == [0, 1]


def test_divergence_is_unknown_where_logits_are_not_finite():
    one = RNG.standard_normal((3, 10)).astype(np.float32)
    other = one.copy()
    other[1, 2] = np.inf
    found = divergences(one, other)
    assert found[0] == found[2] == 0
    assert np.isnan(found[1])


@pytest.mark.parametrize("options", [{"windows": 0}, {"window_tokens": 7}])
def test_what_cannot_be_looked_at_is_refused(options):
    with pytest.raises(UsageError, match="at least"):
        NumericsAxis(documents=DOCUMENTS, **options)


def test_a_text_without_a_window_is_a_sentence(pair):
    with pytest.raises(UsageError, match="give more text"):
        NumericsAxis(documents=collect("empty", [])).run(arms_of(*pair), nothing)
