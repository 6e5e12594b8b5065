"""The artefact scan: sound tensors pass in every format, and each planted defect is located."""

import shutil
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from spoiled import MIXTRAL, failed, opened, spoil, write_pair

from fewbit.evaluate.artefact.scan import far_matrices, ranked_outliers, scan, uncalibrated_experts
from fewbit.evaluate.artefact.tensor import CLIPPED_ERROR, chance_clipped, scan_tensor
from fewbit.formats import affine, blocks, kquants
from fewbit.formats.grid import layout, split
from fewbit.formats.registry import F32, decode, encode, parse_format
from fewbit.formats.spec import QuantTensor
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.base import from_json, to_json
from fewbit.records.manifest import Change
from fewbit.records.measurement import AxisResult
from fewbit.records.scan import TensorError

RNG = np.random.default_rng(3)
WEIGHTS = RNG.standard_normal((48, 512)).astype(np.float32) * np.float32(0.02)
SOURCE = encode(WEIGHTS, F32)
FORMATS = (
    "bf16", "int8-row", "int4-g32", "int3-g32", "int2-g32", "int4-g64-asym", "int8-tensor",
    "q4_0", "q4_1", "q8_0", "q2_k", "q3_k", "q4_k", "q6_k", "iq4_nl", "mxfp4", "fp8_e4m3-row",
)  # fmt: skip


def kinds(tensor, source=SOURCE, **options):
    """Return what is suspected, as (kind, count, first)."""
    found = scan_tensor(source, tensor, **options).suspicions
    return [(s.kind, len(s.places), s.places.first()) for s in found]


def with_scale(tensor, row, group, value):
    scales = tensor.scales.copy()
    scales[row, group] = value
    return replace(tensor, scales=scales)


@pytest.mark.parametrize("name", FORMATS)
def test_a_sound_tensor_has_nothing_to_suspect_in_any_format(name):
    tensor = encode(WEIGHTS, parse_format(name))
    found = scan_tensor(SOURCE, tensor)
    form = None if name in ("bf16", "int8-tensor", "fp8_e4m3-row") else layout(tensor.spec, 512)
    for suspicion in found.suspicions:  # two bits clip whole groups by chance
        assert suspicion.kind == "clipped" and form is not None
        assert len(suspicion.places) <= chance_clipped(form, suspicion.of)
    assert 0 < found.relative_error < 0.8
    assert not found.opaque


@pytest.mark.parametrize("value", [0, np.nan, np.inf])
def test_a_scale_that_was_never_set_is_located(value):
    tensor = with_scale(encode(WEIGHTS, parse_format("int4-g32")), 17, 3, value)
    found = {kind: (count, first) for kind, count, first in kinds(tensor)}
    assert found["scales"] == (1, "row 17, columns 96 to 127")
    # A code of 0 times infinity is no number either.
    assert ("non-finite" in found) == (value != 0)


def test_a_zero_scale_inside_a_gguf_block_is_located():
    tensor = encode(WEIGHTS, parse_format("q4_0"))
    codes = tensor.codes.copy()
    codes.view(blocks.Q4_0)["d"][5, 2] = 0
    assert kinds(replace(tensor, codes=codes)) == [("scales", 1, "row 5, columns 64 to 95")]


def test_zeros_where_the_source_has_none_to_lose_are_sound():
    weights = WEIGHTS.copy()
    weights[7] = 0
    weights[9, :32] = 1e-9  # beyond fp16 scales of four bits, and a ten-millionth of the rest
    source = encode(weights, F32)
    tensor = with_scale(encode(weights, parse_format("int4-g32")), 9, 0, 0)
    assert kinds(tensor, source) == []


def test_a_clipped_group_is_located():
    spec = parse_format("int4-g32")
    scales, _ = affine.fit(WEIGHTS, spec)
    scales[30, 4] /= 4096  # no value is as small as a 4096th of the range, but by chance
    tensor = affine.encode_with(WEIGHTS, spec, scales, None)
    assert ("clipped", 1, "row 30, columns 128 to 159") in kinds(tensor)


def test_a_group_with_one_huge_weight_rounds_the_others_to_an_end_and_is_sound():
    weights = WEIGHTS.copy()
    weights[2, :32] = np.linspace(-0.012, -0.008, 32)
    weights[2, 5] = -0.4
    tensor = encode(weights, parse_format("int4-g32-asym"))
    assert set(split(tensor)[0][2, :32].tolist()) == {0, 15}
    lost = np.linalg.norm((decode(tensor) - weights)[2, :32]) / np.linalg.norm(weights[2, :32])
    assert lost > CLIPPED_ERROR
    assert kinds(tensor, encode(weights, F32)) == []


def test_groups_that_a_second_level_scale_lost_are_told_apart():
    tensor = encode(WEIGHTS, parse_format("q2_k"))
    codes = tensor.codes.copy()
    codes.view(kquants.Q2_K)["scales"][13, 1, 3] = 0  # step and minimum of one group of sixteen
    assert ("zeroed", 1, "row 13, columns 304 to 319") in kinds(replace(tensor, codes=codes))


def test_a_group_of_equal_values_lies_at_an_end_and_is_sound():
    weights = WEIGHTS.copy()
    weights[2, :32] = 0.01
    assert kinds(encode(weights, parse_format("q4_0")), encode(weights, F32)) == []


def test_a_dead_row_is_located():
    tensor = encode(WEIGHTS, parse_format("q8_0"))
    codes = tensor.codes.copy()
    codes.view(blocks.Q8_0)["codes"][11] = 0
    assert kinds(replace(tensor, codes=codes)) == [("dead-rows", 1, "row 11, columns 0 to 511")]


def test_rows_that_are_worse_than_zeros_are_located():
    tensor = encode(WEIGHTS, parse_format("int8-g32"))
    swapped = tensor.take_rows(np.r_[0:20, 21, 20, 22:48])
    assert kinds(swapped) == [("error", 2, "row 20, columns 0 to 511")]


@pytest.mark.parametrize("name", ["int8-g32", "q8_0", "int8-row"])
def test_a_head_with_the_scales_of_another_is_located(name):
    """Scales of two blocks of rows swapped: within a head's range, but not its own."""
    weights = RNG.standard_normal((256, 256)).astype(np.float32)
    weights[32:64] *= np.float32(1.3)
    source, tensor = encode(weights, F32), encode(weights, parse_format(name))
    order = np.r_[0:32, 64:96, 32:64, 96:256]
    if tensor.scales is None:
        fields = tensor.codes.copy().view(blocks.Q8_0)
        fields["d"] = fields["d"][order]
        bad = replace(tensor, codes=fields.view(np.uint8))
    else:
        bad = replace(tensor, scales=tensor.scales[order])
    assert kinds(bad, source) == [("rows", 4, "row 32, columns 0 to 255")]
    assert kinds(tensor, source) == []


def test_values_that_are_not_finite_are_located_and_counted():
    values = WEIGHTS.copy()
    values[40, 3] = np.nan
    values[41, 5] = -np.inf
    tensor = QuantTensor(F32, values.shape, values.view(np.uint8))
    found = scan_tensor(SOURCE, tensor)
    assert [(s.kind, len(s.places), s.places.first()) for s in found.suspicions] == [
        ("non-finite", 2, "row 40, column 3")
    ]
    assert np.isnan(found.relative_error)


def test_an_fp8_code_that_is_no_number_is_located():
    tensor = encode(WEIGHTS, parse_format("fp8_e4m3-row"))
    codes = tensor.codes.copy()
    codes[1, 2] = 0x7F
    assert kinds(replace(tensor, codes=codes)) == [("non-finite", 1, "row 1, column 2")]


def test_what_was_transformed_first_is_compared_by_what_matters_alone():
    spec = parse_format("int8-g32")
    rescaled = encode(WEIGHTS * np.float32(3), spec)
    assert kinds(rescaled, compared=False) == []
    assert [kind for kind, *_ in kinds(with_scale(rescaled, 0, 0, 0), compared=False)] == ["scales"]


# --- whole artefacts ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("mixture"), config=MIXTRAL)


def test_a_sound_artefact_passes_with_the_errors_of_its_manifest(pair):
    source, candidate = opened(*pair)
    found = scan(source, candidate, threads=2)
    assert failed(found) == {}
    recorded = {entry.slot: entry.relative_error for entry in candidate.manifest.tensors}
    for error in found.details.tensors:
        assert error.relative_error == pytest.approx(recorded[error.slot], rel=1e-6)
    assert len(found.details.outliers) == 10
    assert from_json(AxisResult, to_json(found), name="again") == found


def test_experts_that_share_a_tensor_of_a_file_are_those_of_its_manifest(mixture, tmp_path):
    with open_model(mixture[0]) as model:
        quantize(model, find("rtn-q8_0"), tmp_path / "m.gguf")
    assert failed(scan(*opened(mixture[0], tmp_path / "m.gguf"), threads=2)) == {}


def test_a_model_is_sound_beside_itself(pair):
    source, _ = opened(*pair)
    found = scan(source, source)
    assert failed(found) == {}
    assert {error.relative_error for error in found.details.tensors} == {0.0}


def test_a_non_finite_expert_is_caught_and_named(mixture, tmp_path):
    name = "model.layers.1.block_sparse_moe.experts.2.w3.weight.scales"

    def change(tensors):
        tensors[name][4, 1] = np.nan

    source, candidate = opened(mixture[0], spoil(mixture[1], tmp_path / "bad", change))
    found = scan(source, candidate)
    assert set(failed(found)) == {"scan/non-finite", "scan/scales", "scan/manifest"}
    assert "layers.1.experts.2.up.weight at row 4, column 32" in failed(found)["scan/non-finite"]
    assert {(d.layer, d.expert) for d in found.details.defects} == {(1, 2)}
    assert "layers.1.experts.2.up.weight" not in {e.slot for e in found.details.tensors}


def test_a_zero_scale_of_an_artefact_is_caught_and_named(pair, tmp_path):
    def change(tensors):
        tensors["model.layers.0.mlp.down_proj.weight.scales"][9] = 0

    source, candidate = opened(pair[0], spoil(pair[1], tmp_path / "bad", change))
    found = scan(source, candidate)
    assert {"scan/scales", "scan/dead-rows"} < set(failed(found))
    assert "layers.0.down.weight at row 9" in failed(found)["scan/scales"]


def test_a_tensor_that_was_changed_after_its_manifest_is_named(pair, tmp_path):
    """A change too small for any figure: one code of one weight."""

    def change(tensors):
        codes = tensors["model.layers.1.self_attn.o_proj.weight.codes"]
        codes[0, 0] ^= 1

    source, candidate = opened(pair[0], spoil(pair[1], tmp_path / "bad", change))
    found = failed(scan(source, candidate))
    assert set(found) == {"scan/manifest"}
    assert "the first model.layers.1.self_attn.o_proj.weight" in found["scan/manifest"]
    without = scan(source, replace(candidate, manifest=None))
    assert failed(without) == {}
    assert "no manifest" in without.findings[-1].found


def test_the_manifest_of_other_tensors_is_not_believed(pair, tmp_path):
    with open_model(pair[0]) as model:
        for recipe in ("rtn-q8_0", "rtn-q5_0"):
            quantize(model, find(recipe), tmp_path / f"{recipe}.gguf")
    (tmp_path / "rtn-q8_0.gguf").replace(tmp_path / "rtn-q5_0.gguf")
    source, candidate = opened(pair[0], tmp_path / "rtn-q5_0.gguf")
    assert candidate.manifest is None
    found = failed(scan(source, candidate))
    assert set(found) == {"scan/manifest"}
    assert "is not of rtn-q5_0.gguf: " in found["scan/manifest"]


def test_the_manifest_of_another_program_does_not_stop_a_comparison(pair, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(pair[0], copy)
    (copy / "manifest.json").write_text('{"version": 2}')
    assert failed(scan(*opened(copy, copy))) == {}


def test_a_vector_that_is_not_finite_is_caught(pair, tmp_path):
    def change(tensors):
        tensors["model.layers.1.input_layernorm.weight"][7] = np.inf

    source, candidate = opened(pair[0], spoil(pair[1], tmp_path / "bad", change))
    found = failed(scan(source, candidate))
    assert set(found) == {"scan/non-finite", "scan/manifest"}
    assert "layers.1.attn_norm.weight at row 0, column 7" in found["scan/non-finite"]


def test_a_source_that_is_not_finite_is_told_apart(pair, tmp_path):
    def change(tensors):
        tensors["model.layers.0.self_attn.q_proj.weight"][3, 3] = np.nan

    source, candidate = opened(spoil(pair[0], tmp_path / "bad", change), pair[1])
    found = failed(scan(source, candidate))
    assert set(found) == {"scan/source"}
    assert "layers.0.q.weight at row 3, column 3" in found["scan/source"]


def test_experts_that_no_calibration_token_reached_are_named(mixture):
    source, candidate = opened(*mixture)
    manifest = candidate.manifest
    tensors = tuple(
        msgspec.structs.replace(entry, calibration_tokens=0)
        if entry.slot == "layers.0.experts.3.gate.weight"
        else entry
        for entry in manifest.tensors
    )
    reached = replace(candidate, manifest=msgspec.structs.replace(manifest, tensors=tensors))
    found = scan(source, reached)
    assert set(failed(found)) == {"scan/uncalibrated"}
    assert found.details.uncalibrated == ("layers.0.experts.3.gate.weight",)
    assert uncalibrated_experts(None) == ()


def test_a_declared_transform_is_shown_with_the_error_of_the_manifest(pair):
    source, candidate = opened(*pair)
    name = candidate.model.slots["layers.0.up.weight"].name
    change = Change(name="rescale", detail="", tensors=(name,))
    manifest = msgspec.structs.replace(candidate.manifest, transforms=(change,))
    found = scan(source, replace(candidate, manifest=manifest))
    shown = next(e for e in found.details.tensors if e.slot == "layers.0.up.weight")
    assert shown.declared == "rescale"
    assert "1 matrices were transformed before they were quantized (rescale)" in found.notes[0]


def error_of(slot, form, relative):
    return TensorError(
        slot=slot,
        layer=0,
        source_format="bf16",
        candidate_format=form,
        weights=1,
        relative_error=relative,
    )


def test_a_matrix_far_from_the_others_of_its_format_is_named():
    errors = [error_of(f"four{i}", "int4-g32", 0.1) for i in range(8)]
    bad = error_of("bad", "int4-g32", 0.5)
    assert [d.slot for d in far_matrices([*errors, bad])] == ["bad"]
    assert list(far_matrices([*errors[:6], bad])) == []  # too few to say what is usual
    tiny = [error_of(f"f16 {i}", "f16", 1e-9) for i in range(9)]
    assert list(far_matrices([*tiny, error_of("other", "f16", 1e-4)])) == []


def test_outliers_are_ranked_within_their_format():
    errors = [error_of(f"four{i}", "int4-g32", 0.1) for i in range(4)]
    errors += [error_of("bad", "int4-g32", 0.3), error_of("eight", "int8-g32", 0.2)]
    ranked = ranked_outliers(tuple(errors))
    assert (ranked[0].slot, round(ranked[0].times_median, 9)) == ("bad", 3.0)
    assert all(outlier.times_median == 1 for outlier in ranked[1:])
