"""Transforms keep the function: equal logits before quantization, for every family.

The logits of a transformed model differ from the source's by the rounding of the changed weights
and of every buffer that now holds other numbers, float32 each. What such roundings do to a model is
measured, not guessed: `tolerance` rounds every weight of the source up or down by one float32 step
at random. A transform changes a weight at most twice (fold and rotation) and rounds as many buffers
as weights, so a few times that is allowed; planted bugs must leave it far behind.
"""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.errors import UnsupportedError, UsageError
from fewbit.formats.registry import F32, decode
from fewbit.formats.spec import QuantTensor
from fewbit.methods.rotation import hadamard, randomized
from fewbit.model import transforms
from fewbit.model.binding import bind, is_vector
from fewbit.model.decoder import build_program
from fewbit.model.residual import rotate_residual
from fewbit.model.sites import SiteKind, rescale_sites
from fewbit.model.transformed import transformed
from fewbit.model.transforms import Rescale, RotateHeads
from fewbit.model.weights import open_model
from fewbit.program import CacheType
from fewbit.runtime.reference import ReferenceExecutor, choose_reference
from fewbit.runtime.step import Span, StepInput

DENSE = ["llama", "llama-tied", "llama-biased", "qwen2", "qwen3", "gemma3"]
FAMILIES = [*DENSE, "mixtral", "qwen3-moe", "qwen3-moe-sparse"]
ROUNDINGS = 8
"""Times the effect of one rounding of every weight that is allowed."""
ROWS = 24


@contextmanager
def opened_sources(folder):
    """Return a source by family, with its logits and the tolerance; each is opened once."""
    opened = {}

    def source(name):
        if name not in opened:
            config = CONFIGS[name]
            weights = random_weights(config)
            found = open_model(write_huggingface(folder / name, config, weights))
            plain = logits(found)
            opened[name] = found, plain, ROUNDINGS * np.abs(logits(found, jitter) - plain).max()
        return opened[name]

    yield source
    for found, *_ in opened.values():
        found.close()


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    with opened_sources(tmp_path_factory.mktemp("models")) as found:
        yield found


def logits(source, change=None):
    """Run all positions of one sequence in the reference executor, keys and values in float32."""
    program = build_program(source.config, CacheType.F32)
    binding = bind(source, program, choose_reference)
    if change is not None:
        tensors = {slot: change(slot, source.read(slot)) for slot in program.slots()}
        binding = replace(binding, tensors=tensors)
    tokens = np.random.default_rng(5).integers(0, source.config.vocabulary, ROWS, np.int32)
    span = Span(0, ROWS, 0, np.zeros(1, np.int32))
    step = StepInput(tokens, (span,), np.arange(ROWS, dtype=np.int32))
    return ReferenceExecutor(binding, 1).step(step)


def jitter(slot, tensor):
    values = decode(tensor).copy()
    up = np.random.default_rng(len(slot)).integers(0, 2, values.shape).astype(bool)
    away = np.where(up, np.float32(np.inf), np.float32(-np.inf))
    return as_f32(np.nextafter(values, away))


def as_f32(values):
    return QuantTensor(F32, values.shape, np.ascontiguousarray(values, np.float32).view(np.uint8))


def rescales(source, kinds=tuple(SiteKind)):
    """Return a random rescale of every site, factors in [1/4, 4]."""
    random = np.random.default_rng(1)
    sites = rescale_sites(source.config)
    return [
        Rescale(site, np.exp2(random.uniform(-2, 2, site.width)).astype(np.float32))
        for site in sites
        if site.kind in kinds
    ]


def head_rotations(source):
    sites = rescale_sites(source.config)
    matrix = randomized(hadamard(source.config.head_dim), 3)
    return [RotateHeads(site, matrix) for site in sites if site.kind is SiteKind.VALUES]


def residual_rotation(source):
    return [rotate_residual(source, randomized(hadamard(source.config.hidden), 4))]


@pytest.mark.parametrize("name", DENSE)
def test_every_family_has_four_sites_a_layer(sources, name):
    source, *_ = sources(name)
    sites = rescale_sites(source.config)
    by_layer = {layer: [] for layer in range(source.config.layers)}
    for site in sites:
        by_layer[site.layer].append(site)
    for layer, found in by_layer.items():
        assert [site.kind.value for site in found] == ["norm", "values", "norm", "up"]
        prefix = f"layers.{layer}."
        consumers = [tuple(s.removeprefix(prefix) for s in site.consumers) for site in found]
        assert consumers == [
            ("q.weight", "k.weight", "v.weight"),
            ("o.weight",),
            ("gate.weight", "up.weight"),
            ("down.weight",),
        ]


def test_a_mixture_has_a_site_in_every_expert_and_its_router_reads_the_norm(sources):
    source, *_ = sources("mixtral")
    found = [site for site in rescale_sites(source.config) if site.layer == 1]
    experts = source.config.mixture.experts
    assert [site.kind.value for site in found] == ["norm", "values", "norm"] + ["up"] * experts
    assert found[2].consumers[0] == "layers.1.router.weight"
    assert len(found[2].consumers) == 1 + 2 * experts
    assert found[-1].consumers == (f"layers.1.experts.{experts - 1}.down.weight",)


@pytest.mark.parametrize("kind", list(SiteKind))
@pytest.mark.parametrize("name", FAMILIES)
def test_rescaling_keeps_the_logits(sources, name, kind):
    source, plain, tolerance = sources(name)
    changes = rescales(source, (kind,))
    found = logits(transformed(source, changes))
    np.testing.assert_allclose(found, plain, rtol=0, atol=tolerance)
    assert (found != plain).any(), "nothing was changed"


@pytest.mark.parametrize("name", FAMILIES)
def test_rotating_heads_keeps_the_logits(sources, name):
    source, plain, tolerance = sources(name)
    found = logits(transformed(source, head_rotations(source)))
    np.testing.assert_allclose(found, plain, rtol=0, atol=tolerance)
    assert (found != plain).any()


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gemma3"])
def test_rotating_the_residual_stream_keeps_the_logits(sources, name):
    source, plain, tolerance = sources(name)
    rotated = transformed(source, residual_rotation(source))
    assert not rotated.config.tied
    found = logits(rotated)
    np.testing.assert_allclose(found, plain, rtol=0, atol=tolerance)
    norm = decode(rotated.read("layers.0.attn_norm.weight"))
    assert (norm == 1).all()


@pytest.mark.parametrize("name", ["llama-tied", "qwen3"])
def test_all_together_keep_the_logits(sources, name):
    source, plain, tolerance = sources(name)
    once = transformed(source, rescales(source))
    twice = transformed(once, residual_rotation(once) + head_rotations(once))
    assert len(twice.transforms) == len(once.transforms) + source.config.layers + 1
    np.testing.assert_allclose(logits(twice), plain, rtol=0, atol=2 * tolerance)


def test_a_table_stays_shared_where_the_final_norm_is_uniform(tmp_path):
    config = CONFIGS["llama-tied"]
    weights = random_weights(config)
    weights["model.norm.weight"][:] = 1.5
    with open_model(write_huggingface(tmp_path / "model", config, weights)) as source:
        rotated = transformed(source, residual_rotation(source))
        assert rotated.config.tied
        assert "head.weight" not in rotated.slots
        plain = logits(source)
        tolerance = ROUNDINGS * np.abs(logits(source, jitter) - plain).max()
        np.testing.assert_allclose(logits(rotated), plain, rtol=0, atol=tolerance)


def test_norms_after_attention_forbid_rotating_the_stream(sources):
    source, *_ = sources("gemma3")
    with pytest.raises(UnsupportedError, match=r"'layers\.0\.post_attn_norm', a RmsNorm"):
        residual_rotation(source)


def test_a_gguf_file_transforms_like_the_folder(tmp_path):
    """Rows of q and k lie in another order there, and Gemma's norms with the offset in them."""
    for name in ("llama", "gemma3"):
        weights = random_weights(CONFIGS[name])
        with open_model(write_gguf(tmp_path / f"{name}.gguf", CONFIGS[name], weights)) as source:
            plain = logits(source)
            tolerance = ROUNDINGS * np.abs(logits(source, jitter) - plain).max()
            found = logits(transformed(source, rescales(source) + head_rotations(source)))
            np.testing.assert_allclose(found, plain, rtol=0, atol=tolerance)


def test_other_slots_come_through_bit_for_bit(sources):
    source, *_ = sources("qwen2")
    changed = transformed(source, rescales(source, (SiteKind.UP,)))
    for slot in source.slots:
        before, after = source.read(slot), changed.read(slot)
        touched = slot.endswith(("up.weight", "down.weight"))
        assert (slot in changed.edits) == touched
        assert np.array_equal(before.codes, after.codes) != touched
        assert changed.info(slot).nbytes == after.nbytes
        assert changed.outline(slot).shape == after.shape


def plant_offset_forgotten(source, changes, monkeypatch):
    monkeypatch.setattr(
        transforms.ScaleNorm,
        "apply",
        lambda edit, values: (values * edit.factors).astype(np.float32),
    )
    return transformed(source, changes)


def plant_heads_tiled(source, changes, monkeypatch):
    """Query head h reads value head h % kv_heads: the other way of repeating."""

    def tiled(site, channels):
        return np.tile(channels, site.share)

    monkeypatch.setattr("fewbit.model.sites.Site.spread", tiled)
    return transformed(source, changes)


def plant_bias_left(source, changes, monkeypatch):
    changed = transformed(source, changes)
    matrices = {slot: edit for slot, edit in changed.edits.items() if not slot.endswith(".bias")}
    return replace(changed, edits=matrices)


def plant_router_forgotten(source, changes, monkeypatch):
    changed = transformed(source, changes)
    edits = {slot: edit for slot, edit in changed.edits.items() if ".router." not in slot}
    return replace(changed, edits=edits)


def plant_divided_twice(source, changes, monkeypatch):
    changed = transformed(source, changes)
    edits = {slot: edit * 2 if is_vector(slot) else edit for slot, edit in changed.edits.items()}
    return replace(changed, edits=edits)


@pytest.mark.parametrize(
    ("name", "kind", "plant"),
    [
        ("gemma3", SiteKind.NORM, plant_offset_forgotten),
        ("llama", SiteKind.VALUES, plant_heads_tiled),
        ("qwen2", SiteKind.VALUES, plant_bias_left),
        ("llama-biased", SiteKind.UP, plant_bias_left),
        ("llama", SiteKind.NORM, plant_divided_twice),
        ("mixtral", SiteKind.NORM, plant_router_forgotten),
    ],
)
def test_planted_bugs_are_seen(sources, monkeypatch, name, kind, plant):
    source, plain, tolerance = sources(name)
    wrong = logits(plant(source, rescales(source, (kind,)), monkeypatch))
    assert np.abs(wrong - plain).max() > 100 * tolerance


def test_a_bias_that_is_not_rotated_is_seen(sources, monkeypatch):
    source, plain, tolerance = sources("qwen2")
    wrong = logits(plant_bias_left(source, head_rotations(source), monkeypatch))
    assert np.abs(wrong - plain).max() > 100 * tolerance


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan])
def test_factors_must_be_finite_and_positive(sources, bad):
    source, *_ = sources("llama")
    site = rescale_sites(source.config)[0]
    factors = np.ones(site.width, np.float32)
    factors[7] = bad
    with pytest.raises(UsageError, match=r"channel 7 at layers\.0\.attn_norm"):
        Rescale(site, factors)


def test_spread_and_gathered_undo_each_other(sources):
    source, *_ = sources("llama")
    site = next(s for s in rescale_sites(source.config) if s.share > 1)
    channels = np.arange(site.width, dtype=np.float32)
    spread = site.spread(channels)
    assert spread.tolist()[: 2 * site.run] == channels.tolist()[: site.run] * 2
    np.testing.assert_array_equal(site.gathered(spread), np.tile(channels, (site.share, 1)))
