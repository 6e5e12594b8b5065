"""Whole evaluations of tiny models on the reference executor."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_subjects import letters, sharp_weights, write_subject

from fewbit.calibrate.text import collect, document, read_text
from fewbit.errors import NumericalError, UsageError
from fewbit.evaluate.evaluation import EvaluationSettings, evaluate
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.base import from_json, to_json
from fewbit.records.evaluation import Evaluation, Gate
from fewbit.records.outcome import Outcome

SETTINGS = EvaluationSettings(
    executor="reference",
    windows=14,
    window_tokens=48,
    threads=1,
    gate=Gate(minimum_positions=256),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module")
def source(folder):
    return write_subject(folder / "source", weights=sharp_weights())


@pytest.fixture(scope="module")
def documents():
    return letters(documents=14, characters=60)


@pytest.fixture(scope="module")
def small(folder, source):
    with open_model(source) as model:
        quantize(model, find("rtn-int8-g32"), folder / "small")
    return folder / "small"


def test_a_model_against_itself_is_exactly_itself(source, documents):
    found = evaluate(source, source, documents, SETTINGS)
    assert found.verdict.outcome is Outcome.ACCEPT
    mean = found.divergence.mean
    assert (mean.value, mean.low, mean.high, found.divergence.maximum) == (0.0, 0.0, 0.0, 0.0)
    assert found.reverse_divergence.mean.value == 0.0
    assert found.perplexity.ratio.value == 1.0
    assert found.agreement.value == 1.0
    assert all(t.relative_error == 0.0 for t in found.tensors)
    assert found.notes == ()


def test_a_good_candidate_is_accepted_with_all_its_facts(source, small, documents):
    seen = []
    found = evaluate(source, small, documents, SETTINGS, lambda done, all: seen.append((done, all)))
    assert found.verdict.outcome is Outcome.ACCEPT, found.verdict.reasons
    assert 0.0 < found.divergence.mean.low < found.divergence.mean.high < 0.05
    assert seen[-1] == (14, 14)
    assert found.text.positions == sum(d.positions for d in found.documents) == 322
    assert found.text.bos == "<s> (1)"
    assert found.candidate.bytes < found.source.bytes
    assert {t.candidate_format for t in found.tensors} == {"int8-g32"}
    assert all(0 < t.relative_error < 0.02 for t in found.tensors)
    assert found.conditions.executor == "reference"
    assert found.conditions.cpu
    assert from_json(Evaluation, to_json(found), name="again") == found


def test_a_candidate_that_was_made_from_another_file_is_told(tmp_path, source, small, documents):
    same = evaluate(source, small, documents, SETTINGS)
    assert not any("not quantized from this source" in note for note in same.notes)
    weights = sharp_weights()
    weights["model.layers.0.mlp.up_proj.weight"][0, 0] += 1  # of a matrix that is quantized
    other = write_subject(tmp_path / "other", weights=weights)
    found = evaluate(other, small, documents, SETTINGS)
    assert f"not quantized from this source but from {source}" in found.notes[0]


def swapped(folder, small):
    """Copy an artefact with the scales of one layer's rows in reverse order."""
    target = folder / "swapped"
    target.mkdir()
    for path in small.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    weights = target / "model.safetensors"
    tensors = load_file(weights)
    for name in list(tensors):
        if name.startswith("model.layers.1.") and name.endswith(".scales"):
            tensors[name] = tensors[name][::-1].copy()
    header = weights.read_bytes()
    metadata = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
    save_file(tensors, weights, metadata)
    return target


def test_swapped_scales_of_one_layer_are_rejected(tmp_path, source, small, documents):
    found = evaluate(source, swapped(tmp_path, small), documents, SETTINGS)
    assert found.verdict.outcome is Outcome.REJECT, found.divergence.mean
    wrong = {t.layer for t in found.tensors if t.relative_error > 0.02}
    assert wrong == {1}


def test_three_sentences_are_inconclusive(tmp_path, source, small):
    path = tmp_path / "three.txt"
    path.write_text("The sky is blue. The grass is green. The night is long.\n")
    for candidate in (small, source):
        found = evaluate(source, candidate, read_text(path), SETTINGS)
        assert found.verdict.outcome is Outcome.INCONCLUSIVE
        assert found.divergence.mean.low is None
        assert any("1 documents with" in reason for reason in found.verdict.reasons)


def test_a_text_without_a_token_to_score_is_refused(source):
    with pytest.raises(UsageError, match="no document of at least four tokens"):
        evaluate(source, source, collect("t", [document("d", "a")]), SETTINGS)


def test_a_weight_that_is_not_finite_is_located(tmp_path, source, documents):
    weights = sharp_weights()
    weights["model.layers.0.mlp.down_proj.weight"][3, 5] = np.nan
    bad = write_subject(tmp_path / "bad", weights=weights)
    with pytest.raises(NumericalError, match="In document 'd0' the source") as caught:
        evaluate(bad, bad, documents, SETTINGS)
    assert caught.value.exit_code == 3


def test_a_quantized_source_is_named_as_such(small, documents):
    found = evaluate(small, small, documents, SETTINGS)
    assert found.verdict.outcome is Outcome.ACCEPT
    assert any("The source is itself quantized" in note for note in found.notes)
    assert any("round their inputs to 8 bits" in note for note in found.notes)


def test_an_early_look_changes_no_figure_of_a_candidate_that_passes_it(source, small, documents):
    whole = evaluate(source, small, documents, SETTINGS)
    looked = evaluate(source, small, documents, replace(SETTINGS, screen_windows=12))
    assert looked.divergence == whole.divergence
    assert (looked.gate, looked.text) == (whole.gate, whole.text)


@pytest.mark.parametrize(
    ("name", "value"), [("windows", 0), ("screen_windows", 0), ("window_tokens", 7)]
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(UsageError, match=f"{name} is {value}"):
        EvaluationSettings(**{name: value})
