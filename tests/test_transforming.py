"""Transforms by their recipes' names: what they need, what they leave, what they say."""

import numpy as np
import pytest
from test_transformed import ROUNDINGS, jitter, logits
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.calibrate.calibration import calibration_set
from fewbit.errors import UnsupportedError, UsageError
from fewbit.formats.registry import F32, parse_format
from fewbit.model.binding import is_vector
from fewbit.model.weights import open_model
from fewbit.quantization.transforming import (
    TRANSFORMS,
    Walking,
    apply_transforms,
    need_text,
    outline,
    usable_sites,
)
from fewbit.runtime.native import thread_pool

INT4 = parse_format("int4-g32")


def windows(lengths=(40, 24), vocabulary=320):
    random = np.random.default_rng(2)
    return [random.integers(0, vocabulary, n, np.int32) for n in lengths]


def walking(**changes):
    calibration = calibration_set(windows(), [], window_tokens=40)
    fields = {"calibration": calibration, "pool": thread_pool(1)}
    return Walking(**{**fields, **changes})


def formats(source, form=INT4):
    layers = (slot for slot in source.slots if slot.startswith("layers."))
    return {slot: form for slot in layers if not is_vector(slot) and ".router." not in slot}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    opened = {
        name: open_model(write_huggingface(folder / name, CONFIGS[name], weights(name)))
        for name in ("llama-tied", "qwen2", "gemma3", "mixtral")
    }
    yield opened
    for source in opened.values():
        source.close()


def weights(name):
    """Return weights of a model whose norms favour some channels, as trained ones do."""
    found = random_weights(CONFIGS[name])
    random = np.random.default_rng(8)
    for key, values in found.items():
        if key.endswith("norm.weight") and len(values) == 64:
            found[key] = values * np.exp(random.standard_normal(64)).astype(np.float32)
    return found


@pytest.mark.parametrize("transform", list(TRANSFORMS))
@pytest.mark.parametrize("name", ["llama-tied", "qwen2", "gemma3"])
def test_every_transform_keeps_the_function_and_the_outline(sources, name, transform):
    source = sources[name]
    if (name, transform) == ("gemma3", "rotate-residual"):
        with pytest.raises(UnsupportedError, match="post_attn_norm"):
            apply_transforms(source, [transform], formats(source), walking())
        return
    changed, (applied,) = apply_transforms(source, [transform], formats(source), walking())
    plain = logits(source)
    tolerance = ROUNDINGS * np.abs(logits(source, jitter) - plain).max()
    np.testing.assert_allclose(logits(changed), plain, rtol=0, atol=tolerance)
    assert applied.name == transform
    assert set(applied.slots) == changed.edits.keys()
    expected = outline(source, [transform], formats(source))
    assert expected.config == changed.config
    assert list(expected.slots) == list(changed.slots)
    assert all(expected.info(slot) == changed.info(slot) for slot in changed.slots)


def test_awq_lowers_the_error_at_its_sites(sources):
    source = sources["llama-tied"]
    changed, (applied,) = apply_transforms(source, ["awq"], formats(source), walking())
    sites = usable_sites(source, formats(source))
    assert len(sites) == 4 * source.config.layers
    assert f"of {len(sites)} sites, output error 0." in applied.detail
    factors = [t.factors for t in changed.transforms]
    assert sum((f != 1).any() for f in factors) > len(sites) / 2


def test_transforms_come_one_after_the_other(sources):
    source = sources["qwen2"]
    names = ["rotate-residual", "rotate-heads", "smoothquant"]
    changed, applied = apply_transforms(source, names, formats(source), walking())
    assert [one.name for one in applied] == names
    assert not changed.config.tied
    assert "no longer shares" in applied[0].detail
    plain = logits(source)
    tolerance = 2 * ROUNDINGS * np.abs(logits(source, jitter) - plain).max()
    np.testing.assert_allclose(logits(changed), plain, rtol=0, atol=tolerance)


def test_a_site_with_a_kept_matrix_is_left_alone(sources):
    source = sources["llama-tied"]
    some = {s: f for s, f in formats(source).items() if s != "layers.1.up.weight"}
    changed, _ = apply_transforms(source, ["awq"], some, walking())
    assert "layers.1.mlp_norm.weight" not in changed.edits
    assert "layers.1.down.weight" not in changed.edits
    assert "layers.1.attn_norm.weight" in changed.edits
    assert changed.info("layers.1.up.weight") == source.info("layers.1.up.weight")


def test_a_router_follows_its_norm_though_it_is_kept(sources):
    source = sources["mixtral"]
    changed, _ = apply_transforms(source, ["rescale"], formats(source), None)
    assert changed.info("layers.0.router.weight").format == F32
    plain = logits(source)
    tolerance = ROUNDINGS * np.abs(logits(source, jitter) - plain).max()
    np.testing.assert_allclose(logits(changed), plain, rtol=0, atol=tolerance)


def test_the_source_is_only_read(sources):
    source = sources["qwen2"]
    before = {slot: source.read(slot).codes.tobytes() for slot in source.slots}
    apply_transforms(source, ["rescale", "awq"], formats(source), walking())
    assert before == {slot: source.read(slot).codes.tobytes() for slot in source.slots}


def test_what_looks_at_activations_needs_text(sources):
    source = sources["qwen2"]
    assert need_text(["rescale", "awq"])
    assert not need_text(["rescale", "rotate-heads", "rotate-residual"])
    with pytest.raises(UsageError, match="'awq' looks at activations"):
        apply_transforms(source, ["awq"], formats(source), None)


def test_an_unknown_transform_is_refused(sources):
    source = sources["qwen2"]
    with pytest.raises(UnsupportedError, match="'awk' is not known; there are awq, smoothquant"):
        outline(source, ["awk"], formats(source))


def test_progress_names_every_site(sources):
    seen = []
    watched = walking(progress=lambda done, total, slot: seen.append((done, total, slot)))
    source = sources["qwen2"]
    apply_transforms(source, ["awq"], formats(source), watched)
    assert [done for done, *_ in seen] == list(range(4 * source.config.layers))
    assert seen[0] == (0, 12, "layers.0.q.weight")


@pytest.mark.parametrize("transform", ["awq", "smoothquant"])
def test_sites_inside_experts_are_searched_too(sources, transform):
    source = sources["mixtral"]
    changed, _ = apply_transforms(source, [transform], formats(source), walking())
    inside = [t for t in changed.transforms if ".experts." in t.site.buffer]
    assert len(inside) == source.config.layers * source.config.mixture.experts
    assert any((t.factors != 1).any() for t in inside)
    plain = logits(source)
    tolerance = ROUNDINGS * np.abs(logits(source, jitter) - plain).max()
    np.testing.assert_allclose(logits(changed), plain, rtol=0, atol=tolerance)
