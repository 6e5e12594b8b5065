"""Whole evaluations of tiny models on the reference executor."""

import json
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_subjects import letters, sharp_weights, text_alone, write_subject

from fewbit.calibrate.text import collect, document, read_text
from fewbit.errors import BadFileError, OutputError, UsageError
from fewbit.evaluate.evaluation import EvaluationSettings
from fewbit.evaluate.evaluation import evaluate as measure
from fewbit.evaluate.language.axis import LanguageAxis
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.base import from_json, to_json
from fewbit.records.evaluation import Evaluation
from fewbit.records.gate import Gate, SliceRule, Waiver
from fewbit.records.measurement import Finding
from fewbit.records.outcome import Outcome

GATE = Gate(
    slices=(
        SliceRule(match="language/kl", margin=0.05, minimum_items=12, excess=False),
        SliceRule(match="language/perplexity", margin=1.2, minimum_items=12, excess=False),
    )
)
SETTINGS = EvaluationSettings(executor="reference", threads=1, gate=GATE, floor=False)


@dataclass(frozen=True)
class Failing:
    """An axis that brings one more finding."""

    axis: LanguageAxis
    finding: Finding

    @property
    def name(self):
        return self.axis.name

    @property
    def brings(self):
        brought = self.axis.brings
        return replace(brought, findings=(*brought.findings, self.finding.name))

    def run(self, arms, progress):
        found = self.axis.run(arms, progress)
        return msgspec.structs.replace(found, findings=(*found.findings, self.finding))


def axis(documents, windows=14):
    return text_alone(documents, windows=windows, window_tokens=48)


def evaluate(source, candidate, documents, settings=SETTINGS, *progress):
    return measure(source, candidate, [axis(documents)], settings, *progress)


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
    told = found.language
    mean = told.divergence.mean
    assert (mean.value, mean.low, mean.high, told.divergence.maximum) == (0.0, 0.0, 0.0, 0.0)
    assert told.reverse_divergence.mean.value == 0.0
    assert told.perplexity.ratio.value == 1.0
    assert told.agreement.value == 1.0
    assert found.judgement("language/kl").figure.high == 0.0
    assert all(t.relative_error == 0.0 for t in found.tensors)
    assert found.notes == ()


def test_a_good_candidate_is_accepted_with_all_its_facts(source, small, documents):
    seen = []
    found = evaluate(source, small, documents, SETTINGS, lambda *told: seen.append(told))
    assert found.verdict.outcome is Outcome.ACCEPT, found.verdict.reasons
    told = found.language
    assert 0.0 < told.divergence.mean.low < told.divergence.mean.high < 0.05
    assert seen[-1] == ("language", 14, 14)
    assert told.text.positions == sum(d.positions for d in told.documents) == 322
    assert told.text.bos == "<s> (1)"
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
    assert found.verdict.outcome is Outcome.REJECT, found.verdict.reasons
    wrong = {t.layer for t in found.tensors if t.relative_error > 0.02}
    assert wrong == {1}


def test_three_sentences_are_inconclusive(tmp_path, source, small):
    path = tmp_path / "three.txt"
    path.write_text("The sky is blue. The grass is green. The night is long.\n")
    for candidate in (small, source):
        found = evaluate(source, candidate, read_text(path), SETTINGS)
        assert found.verdict.outcome is Outcome.INCONCLUSIVE
        assert found.language.divergence.mean.low is None
        assert any("not judged on 1 items" in reason for reason in found.verdict.reasons)


def test_a_text_without_a_token_to_score_is_refused(source):
    with pytest.raises(UsageError, match="no document of at least 4 tokens"):
        evaluate(source, source, collect("t", [document("d", "a")]), SETTINGS)


def test_a_weight_that_is_not_finite_is_located(tmp_path, source, documents):
    weights = sharp_weights()
    weights["model.layers.0.mlp.down_proj.weight"][3, 5] = np.nan
    bad = write_subject(tmp_path / "bad", weights=weights)
    found = evaluate(bad, bad, documents, SETTINGS)
    assert found.verdict.outcome is Outcome.REJECT
    assert [axis.axis for axis in found.axes] == ["scan"]  # nothing was run
    assert "layers.0.down.weight" in found.verdict.reasons[0]


def test_a_quantized_source_is_named_as_such(small, documents):
    found = evaluate(small, small, documents, SETTINGS)
    assert found.verdict.outcome is Outcome.ACCEPT
    assert any("The source is itself quantized" in note for note in found.notes)
    assert any("round their inputs to 8 bits" in note for note in found.notes)


def test_an_early_look_changes_no_figure_of_a_candidate_that_passes_it(source, small, documents):
    looking = replace(SETTINGS, screen=(axis(documents, 12),))
    whole, looked = (evaluate(source, small, documents, s) for s in (SETTINGS, looking))
    assert looked.axes[0].slices == whole.axes[0].slices
    assert whole.gate.level < looked.gate.level < 0.96  # both looks together err as one would


def test_an_early_look_ends_what_is_hopeless(tmp_path, source, documents):
    looking = replace(SETTINGS, screen=(axis(documents, 12),))
    with open_model(source) as model:
        quantize(model, find("rtn-int2-g32"), tmp_path / "coarse")
    found = evaluate(source, tmp_path / "coarse", documents, looking)
    assert found.verdict.outcome is Outcome.REJECT
    assert (found.language.text.windows, found.gate.level) == (12, 0.999)


def test_a_first_look_need_not_have_all_that_the_gate_asks_for(source, small, documents):
    wanted = SliceRule(match="language/kl/chat", margin=1.0, minimum_items=12)
    gate = msgspec.structs.replace(GATE, slices=(wanted, *GATE.slices))
    looking = replace(SETTINGS, gate=gate, screen=(axis(documents, 12),))
    found = evaluate(source, small, documents, looking)
    assert found.language.text.windows == 14  # it went on, and what was not there is said
    assert "Nothing that 'language/kl/chat' fits was measured" in found.verdict.reasons[0]


def test_a_first_look_waives_what_the_gate_waives(source, small, documents):
    finding = Finding(name="language/begins", axis="language", passed=False, found="It is off.")
    gate = msgspec.structs.replace(GATE, waive=(Waiver(finding=finding.name, reason="known"),))
    looked = Failing(axis(documents, 12), finding)
    looking = replace(SETTINGS, gate=gate, screen=(looked,))
    found = measure(source, small, [Failing(axis(documents), finding)], looking)
    assert found.language.text.windows == 14  # it went on
    assert found.verdict.outcome is Outcome.ACCEPT


def test_the_floor_is_the_source_under_another_precision(source, small, documents):
    found = evaluate(source, small, documents, replace(SETTINGS, floor=True))
    kl = found.judgement("language/kl")
    assert 0.0 < kl.floor.value < kl.figure.value
    assert [arm.role for arm in found.arms] == ["source", "floor", "candidate"]
    assert found.arms[1].run == "the source, keys and values kept in bf16 instead of f16"
    of_integers = evaluate(small, small, documents, replace(SETTINGS, floor=True))
    assert "rounded to bf16 instead of int8" in of_integers.arms[1].run
    assert of_integers.judgement("language/kl").floor.value > 0.0


def test_what_is_kept_is_not_measured_again(tmp_path, source, small, documents):
    settings = replace(SETTINGS, work=tmp_path / "work")
    first = evaluate(source, small, documents, settings)
    told = []
    again = evaluate(source, small, documents, settings, lambda *seen: told.append(seen))
    assert told == [("scan: weights", 0, 1), ("scan: weights", 1, 1)]
    assert again.axes[0].slices == first.axes[0].slices
    assert again.language == first.language


def test_a_run_that_was_killed_goes_on(tmp_path, source, small, documents):
    settings = replace(SETTINGS, work=tmp_path / "work")

    def kill(_what, done, _all):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(source, small, documents, settings, kill)
    told = []
    found = evaluate(source, small, documents, settings, lambda *seen: told.append(seen))
    assert told[-1] == ("language", 9, 9)
    assert found.language == evaluate(source, small, documents, SETTINGS).language


def test_two_runs_do_not_share_a_work_folder(tmp_path, source, documents):
    settings = replace(SETTINGS, work=tmp_path / "work")

    def another(*_):
        with pytest.raises(OutputError, match="Another run is writing"):
            evaluate(source, source, documents, settings)

    evaluate(source, source, documents, settings, another)


def test_a_window_longer_than_the_context_is_refused(source, documents):
    long = LanguageAxis(documents=documents, window_tokens=100_000)
    with pytest.raises(UsageError, match="the model was made for"):
        measure(source, source, [long], SETTINGS)


@pytest.mark.parametrize(("name", "value"), [("windows", 0), ("window_tokens", 7)])
def test_settings_out_of_range_are_refused(documents, name, value):
    with pytest.raises(UsageError, match=f"{name} is {value}"):
        LanguageAxis(documents=documents, **{name: value})


def test_an_evaluation_of_an_earlier_version_is_refused_in_a_sentence():
    with pytest.raises(BadFileError, match="record of version 1, and this fewbit reads version 2"):
        from_json(Evaluation, b'{"version": 1, "source": {}}', name="old.json")
