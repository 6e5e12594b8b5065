"""Formats for a number of bytes: the size, the fused matrices, and never worse than uniform."""

import dataclasses
import math
from collections import defaultdict

import numpy as np
import pytest
from msgspec.structs import replace
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.errors import UnsupportedError, UsageError
from fewbit.formats.registry import decode, encode
from fewbit.model.weights import open_model
from fewbit.quantization import Container, plan, quantize, trial
from fewbit.quantization.allocation import AllocationSettings, Wish, allocate
from fewbit.quantization.choices import Group, smallest, total_bytes, total_cost, uniform_choices
from fewbit.quantization.knapsack import Option, choose_options
from fewbit.quantization.target import parse_bits, parse_size
from fewbit.quantization.trial import Builder
from fewbit.recipes import built_in
from fewbit.records.recipe import Recipe, Rule

WINDOWS = [np.random.default_rng(2).integers(0, 320, 40).astype(np.int32) for _ in range(6)]
SETTINGS = AllocationSettings(probe_windows=3, threads=1, formats=("q4_0", "q5_1", "q8_0"))
AFFINE = AllocationSettings(
    probe_windows=3, threads=1, formats=("int3-g32", "int4-g32", "int5-g32", "int8-g32")
)
BASE = built_in("rtn-q4_0")


def weights_of(config):
    """Random weights of which some layers matter much more than others."""
    weights = random_weights(config)
    weights["model.layers.1.mlp.down_proj.weight"] *= np.float32(6)
    return weights


@pytest.fixture(scope="module")
def gguf_source(tmp_path_factory):
    config = CONFIGS["llama"]
    path = write_gguf(tmp_path_factory.mktemp("a") / "m.gguf", config, weights_of(config))
    with open_model(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def folder_source(tmp_path_factory):
    config = CONFIGS["llama-tied"]
    folder = tmp_path_factory.mktemp("a") / "m"
    with open_model(write_huggingface(folder, config, weights_of(config))) as opened:
        yield opened


def make(planned, _squares=None):
    return {
        t.slot: encode(decode(planned.source.read(t.slot)), t.format)
        for t in planned.tensors
        if t.status == "quantized"
    }


rounded = Builder("rtn", make)


def wish(source, target, container=Container.GGUF, base=BASE):
    return Wish(source=source, base=base, container=container, target=target)


def file_target(source, bits):
    """A size between those of the smallest and the largest formats."""
    infos = source.checkpoint.tensors.values()
    overhead = source.path.stat().st_size - sum(info.nbytes for info in infos)
    weights = sum(math.prod(info.shape) for info in infos)
    return parse_size(str(overhead + int(bits * weights / 8)))


@pytest.mark.parametrize("bits", [6.0, 7.5])
def test_the_file_takes_at_most_the_target_and_nearly_that(tmp_path, gguf_source, bits):
    target = file_target(gguf_source, bits)
    recipe, record = allocate(wish(gguf_source, target), WINDOWS, rounded, SETTINGS)
    quantize(gguf_source, recipe, tmp_path / "out.gguf")
    written = (tmp_path / "out.gguf").stat().st_size
    assert written <= record.bytes <= target.bytes == record.target_bytes
    assert record.counts == "file"
    assert written > 0.93 * target.bytes
    assert {rule.match for rule in recipe.rules} == {
        slot for slot in gguf_source.slots if len(gguf_source.info(slot).shape) > 1
    }


def test_what_is_returned_is_the_better_of_the_two(gguf_source):
    target = file_target(gguf_source, 7.0)
    recipe, record = allocate(wish(gguf_source, target), WINDOWS, rounded, SETTINGS)
    assert record.chosen == "allocated"
    assert record.allocated.divergence <= record.uniform.divergence
    assert record.uniform.bytes <= record.target_bytes
    assert sum(record.formats.values()) == len(recipe.rules) - sum(
        rule.format == "keep" for rule in recipe.rules
    )
    assert record.probe_tokens == record.held_out_tokens == 120


def test_a_choice_that_turns_out_worse_than_uniform_is_not_returned(gguf_source):
    """The planted fault: whatever mixes formats among layers is built badly."""
    target = file_target(gguf_source, 7.0)
    shapes = defaultdict(set)

    def mixed_badly(planned, _squares):
        found = make(planned)
        formats = {t.spec.name for slot, t in found.items() if slot.startswith("layers.")}
        shapes[len(formats) > 1].add(True)
        if len(formats) == 1:
            return found
        return {slot: encode(decode(t) * np.float32(3), t.spec) for slot, t in found.items()}

    recipe, record = allocate(
        wish(gguf_source, target), WINDOWS, Builder("rtn", mixed_badly), SETTINGS
    )
    assert shapes[True] and shapes[False]
    assert record.chosen == "uniform"
    assert record.allocated.divergence > record.uniform.divergence
    layers = {rule.format for rule in recipe.rules if rule.match.startswith("layers.")}
    assert len(layers) == 1
    assert plan(gguf_source, recipe, Container.GGUF).promised_bytes < target.bytes


def formats_by_group(recipe, *sites):
    formats = {rule.match: rule.format for rule in recipe.rules}
    return [{formats[f"layers.{layer}.{site}.weight"] for site in sites} for layer in range(3)]


def test_fused_matrices_keep_together_in_a_folder_and_are_free_in_gguf(folder_source, gguf_source):
    base = built_in("rtn-int4-g32")
    folder, _ = allocate(
        wish(folder_source, parse_bits(4.6), Container.FEWBIT, base), WINDOWS, rounded, AFFINE
    )
    for sites in (("q", "k", "v"), ("gate", "up")):
        assert all(len(found) == 1 for found in formats_by_group(folder, *sites))
    free, _ = allocate(wish(gguf_source, file_target(gguf_source, 6.5)), WINDOWS, rounded, SETTINGS)
    assert any(len(found) > 1 for found in formats_by_group(free, "q", "k", "v", "gate", "up"))


def test_what_is_probed_together_gets_one_format(gguf_source, monkeypatch):
    monkeypatch.setattr(trial, "MANY_WEIGHTS", 1)
    asked = wish(gguf_source, file_target(gguf_source, 6.5))
    recipe, record = allocate(asked, WINDOWS, rounded, SETTINGS)
    assert len(record.sensitivities) == 2 + 3 * 4
    for sites in (("q", "k", "v"), ("gate", "up")):
        assert all(len(found) == 1 for found in formats_by_group(recipe, *sites))
    assert record.notes == ("matrices that read the same input were probed together",)


def test_of_a_large_model_some_layers_are_probed(gguf_source, monkeypatch):
    monkeypatch.setattr(trial, "MANY_WEIGHTS", 1)
    settings = dataclasses.replace(SETTINGS, probe_layers=1)
    asked = wish(gguf_source, file_target(gguf_source, 6.5))
    _, record = allocate(asked, WINDOWS, rounded, settings)
    unknown = {one.slots[0] for one in record.sensitivities if one.divergence is None}
    assert unknown == {f"layers.2.{site}.weight" for site in ("q", "o", "gate", "down")}
    assert all(one.smoothed > 0 for one in record.sensitivities)
    assert record.notes[1] == "layers 0, 1 were probed, and the others reckoned by depth"


def test_bits_are_of_all_weights(folder_source):
    base = built_in("rtn-int4-g32-wo")
    asked = wish(folder_source, parse_bits(5.0), Container.FEWBIT, base)
    recipe, record = allocate(asked, WINDOWS, rounded, AFFINE)
    planned = plan(folder_source, recipe, Container.FEWBIT)
    assert 4.7 < planned.bits_per_weight <= 5.0
    assert record.counts == "tensors"
    assert {rule.activations for rule in recipe.rules} == {base.rules[0].activations}
    assert recipe.name == "rtn-5bpw"


def test_more_bytes_diverge_less(folder_source):
    base = built_in("rtn-int4-g32")
    found = [
        allocate(
            wish(folder_source, parse_bits(bits), Container.FEWBIT, base),
            WINDOWS,
            rounded,
            AFFINE,
        )[1].allocated
        for bits in (3.8, 5.0, 8.0)
    ]
    assert found[0].divergence > 2 * found[1].divergence > 4 * found[2].divergence
    assert found[0].predicted > found[1].predicted > found[2].predicted


def test_what_cannot_be_is_refused(gguf_source):
    with pytest.raises(UsageError, match="with the smallest formats to choose from"):
        allocate(wish(gguf_source, parse_size("20kB")), WINDOWS, rounded, SETTINGS)
    with pytest.raises(UsageError, match="needs more than 3"):
        allocate(wish(gguf_source, parse_size("20kB")), WINDOWS[:3], rounded, SETTINGS)


def test_transforms_are_taken_over_and_count_in_the_size(tmp_path, folder_source):
    base = replace(built_in("rtn-int4-g32"), transforms=("rescale",))
    asked = wish(folder_source, parse_bits(5.0), Container.FEWBIT, base)
    recipe, record = allocate(asked, WINDOWS, rounded, AFFINE)
    assert recipe.transforms == ("rescale",)
    manifest = quantize(folder_source, recipe, tmp_path / "out")
    assert manifest.tensor_bytes == record.bytes <= record.target_bytes
    assert any("without the recipe's transforms" in note for note in record.notes)


def test_a_transform_that_adds_a_matrix_is_refused(folder_source):
    base = replace(built_in("rtn-int4-g32"), transforms=("rotate-residual",))
    asked = wish(folder_source, parse_bits(5.0), Container.FEWBIT, base)
    with pytest.raises(UnsupportedError, match=r"a matrix of its own of head\.weight"):
        allocate(asked, WINDOWS, rounded, AFFINE)


def test_the_allocated_choice_is_never_predicted_worse_than_any_uniform_one():
    """Uniform choices are among those that the knapsack chooses from, fallbacks included."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        groups = [
            Group(
                (f"layers.{i}.q.weight" if i else "embed.weight",),
                ("q5_0", "q8_0", "keep") if i % 2 else ("q4_k", "q5_0", "keep"),
                tuple(Option(int(b), float(c)) for b, c in zip((4, 8, 16), costs, strict=True)),
            )
            for i, costs in enumerate(np.sort(rng.exponential(size=(7, 3)), axis=1)[:, ::-1])
        ]
        budget = total_bytes(groups, smallest(groups)) + int(rng.integers(0, 40))
        best = choose_options([group.options for group in groups], budget)
        fitting = [c for c in uniform_choices(groups) if total_bytes(groups, c) <= budget]
        assert fitting
        assert total_cost(groups, best) <= min(total_cost(groups, c) for c in fitting) + 1e-12


def test_a_source_on_the_probes_grid_is_probed_on_a_coarser_one(tmp_path, folder_source):
    """Rounded to int4-g32 it would err in nothing, and every format would seem as good."""
    whole = (Rule(match="*", format="int4-g32"),)
    quantize(folder_source, Recipe(name="four", method="rtn", rules=whole), tmp_path / "four")
    formats = AllocationSettings(
        probe_windows=3, threads=1, formats=("int2-g32-asym", "int3-g32", "int3-g32-asym")
    )
    with open_model(tmp_path / "four") as source:
        asked = wish(source, parse_bits(3.7), Container.FEWBIT, built_in("rtn-int4-g32"))
        _, record = allocate(asked, WINDOWS, rounded, formats)
    assert record.probe_format == "int3-g32"
    assert all(one.divergence > 0 for one in record.sensitivities)
    assert record.allocated.predicted > 0
    # The prediction is the first term of a series, so it says no more than the order.
    assert 0.1 < record.allocated.predicted / record.allocated.divergence < 10
