"""The first loop on tiny models: what is tried, what is kept, and what is never left behind."""

from dataclasses import replace

import msgspec
import pytest
import sample_evaluation as sample
from tiny_subjects import letters, sharp_weights, text_alone, write_subject

from fewbit.calibrate.mix import CalibrationSettings, Ingredient
from fewbit.compress import loop as module
from fewbit.compress.conclusion import conclude
from fewbit.compress.ladder import LADDER
from fewbit.compress.ladder import ladder as all_plans
from fewbit.compress.loop import CompressSettings, compress
from fewbit.compress.making import Workshop
from fewbit.errors import (
    NumericalError,
    OutputError,
    StoppedError,
    UnsupportedError,
    UsageError,
)
from fewbit.evaluate.evaluation import EvaluationSettings, evaluate
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.base import from_json
from fewbit.records.evaluation import CompressReport, Evaluation
from fewbit.records.gate import Gate, SliceRule
from fewbit.records.manifest import read_manifest
from fewbit.records.outcome import Outcome

DOCUMENTS = letters(documents=12, characters=50)


def gate(items=12):
    limits = {"minimum_items": items, "minimum_clusters": items, "excess": False}
    return Gate(
        slices=(
            SliceRule(match="language/kl", margin=0.05, **limits),
            SliceRule(match="language/perplexity", margin=1.2, **limits),
        )
    )


def axis(documents, windows=12):
    return text_alone(documents, windows=windows, window_tokens=40)


MEASURING = EvaluationSettings(executor="reference", threads=1, gate=gate(), floor=False)
AXES = [axis(DOCUMENTS)]


def ladder(model, names, *, strict=False):
    shop = Workshop(model, None, "fewbit", CalibrationSettings(), strict, lambda *_: None)
    return all_plans(shop, [find(name) for name in names])


def settings(*recipes):
    return CompressSettings(recipes=recipes, evaluation=MEASURING)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_subject(tmp_path_factory.mktemp("source") / "model", weights=sharp_weights())


@pytest.fixture(scope="module")
def accepted(tmp_path_factory, source):
    out = tmp_path_factory.mktemp("accepted") / "out"
    seen = []
    report = compress(
        source, out, AXES, settings("rtn-int8-g32", "rtn-int2-g32"), lambda *s: seen.append(s)
    )
    return out, report, seen


def test_small_recipes_come_first_and_the_first_accepted_ends_it(accepted):
    _, report, _ = accepted
    outcomes = [(a.recipe, a.evaluation.verdict.outcome) for a in report.attempts]
    assert outcomes == [("rtn-int2-g32", Outcome.REJECT), ("rtn-int8-g32", Outcome.ACCEPT)]
    assert (report.accepted, report.outcome) == ("rtn-int8-g32", Outcome.ACCEPT)
    assert "rtn-int8-g32 is the smallest recipe tried" in report.reasons[0]


def test_the_output_is_a_model_with_its_evidence(accepted, source):
    out, report, _ = accepted
    assert read_manifest(out).recipe.name == "rtn-int8-g32"
    for attempt in report.attempts:
        text = (out / attempt.evidence).read_bytes()
        assert from_json(Evaluation, text, name="evidence") == attempt.evaluation
    stored = from_json(CompressReport, (out / "report.json").read_bytes(), name="report")
    assert stored == report
    assert "rtn-int2-g32" in (out / "report.html").read_text()
    again = evaluate(source, out, AXES, MEASURING)
    assert again.language == report.attempts[-1].evaluation.language


def test_nothing_else_is_left_beside_the_output(accepted):
    out, _, _ = accepted
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert not (out / "candidate").exists()


def test_progress_names_stage_and_recipe_and_says_what_came_of_it(accepted):
    _, report, seen = accepted
    stages = list(dict.fromkeys(what for what, _, of in seen if of))
    assert stages == [
        "quantizing, rtn-int2-g32",
        "scan: weights, rtn-int2-g32",
        "language, rtn-int2-g32",
        "quantizing, rtn-int8-g32",
        "scan: weights, rtn-int8-g32",
        "language, rtn-int8-g32",
    ]
    notes = [what for what, _, of in seen if not of]
    assert notes[0] == "rtn-int2-g32, 1 of 2."
    assert notes[1].startswith("rtn-int2-g32: REJECT, ")
    assert report.attempts[0].evaluation.verdict.reasons[0] in notes[1]
    assert notes[3].startswith("rtn-int8-g32: ACCEPT, ")


def test_a_hopeless_recipe_is_not_measured_on_all_windows(tmp_path, source):
    chosen = CompressSettings(
        recipes=("rtn-int2-g32", "rtn-int8-g32"),
        evaluation=replace(MEASURING, gate=gate(10), screen=(axis(DOCUMENTS, 10),)),
    )
    report = compress(source, tmp_path / "out", AXES, chosen)
    bad, good = (attempt.evaluation for attempt in report.attempts)
    assert (bad.language.text.windows, bad.gate.level) == (10, 0.999)
    assert (good.language.text.windows, round(good.gate.level, 6)) == (12, 0.951)
    assert bad.verdict.outcome is Outcome.REJECT


def test_without_an_accepted_recipe_there_is_evidence_and_no_model(tmp_path, source):
    out = tmp_path / "out"
    report = compress(source, out, AXES, settings("rtn-int2-g32", "rtn-int2-g64"))
    assert (report.outcome, report.accepted) == (Outcome.REJECT, None)
    assert report.outcome.exit_code == 3
    assert "No recipe was accepted, so no model was written. The best attempt" in report.reasons[0]
    assert sorted(path.name for path in out.iterdir()) == [
        "attempts",
        "report.html",
        "report.json",
    ]
    assert len(list((out / "attempts").iterdir())) == 2


def test_little_text_is_inconclusive(tmp_path, source):
    few = letters(documents=3, characters=50)
    report = compress(source, tmp_path / "out", [axis(few)], settings("rtn-int8-g32"))
    assert report.outcome is Outcome.INCONCLUSIVE
    assert report.outcome.exit_code == 4


def test_an_earlier_output_is_replaced_as_a_whole(tmp_path, source):
    out = tmp_path / "out"
    compress(source, out, AXES, settings("rtn-int8-g32"))
    compress(source, out, AXES, settings("rtn-int2-g32"))
    assert not (out / "model.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("content", [None, b"{}"])
def test_an_output_that_is_not_ours_is_untouched(tmp_path, source, content):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    if content is not None:
        (out / "report.json").write_bytes(content)
    with pytest.raises(OutputError, match="was not written by fewbit compress"):
        compress(source, out, AXES, settings("rtn-int8-g32"))
    assert (out / "thesis.txt").read_text() == "years of work"


def test_a_failure_leaves_the_old_output(tmp_path, source, monkeypatch):
    out = tmp_path / "out"
    compress(source, out, AXES, settings("rtn-int8-g32"))
    before = sorted((path.name, path.stat().st_mtime_ns) for path in out.iterdir())

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "evaluate", interrupted)
    with pytest.raises(StoppedError):
        compress(source, out, AXES, settings("rtn-int2-g32"))
    assert sorted((path.name, path.stat().st_mtime_ns) for path in out.iterdir()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.work", "out"]


def test_a_gate_that_names_no_slice_is_refused_before_anything_is_made(tmp_path, source):
    misspelt = Gate(slices=(SliceRule(match="language/lk", margin=0.05),))
    chosen = replace(settings("rtn-int8-g32"), evaluation=replace(MEASURING, gate=misspelt))
    with pytest.raises(UsageError, match="did you mean language/kl"):
        compress(source, tmp_path / "out", AXES, chosen)
    assert list(tmp_path.iterdir()) == []


def test_an_absent_parent_is_said(tmp_path, source):
    with pytest.raises(OutputError, match="cannot be written"):
        compress(source, tmp_path / "no" / "out", AXES, settings("rtn-int8-g32"))


def test_recipes_that_do_not_help_are_listed_with_reasons(tmp_path, source):
    with open_model(source) as model:
        quantize(model, find("rtn-int4-g32"), tmp_path / "small")
    with open_model(tmp_path / "small") as model:
        plans, untried = ladder(model, ("rtn-int8-g32", "rtn-int3-g64", "rtn-int3-g128"))
    assert [p.recipe.name for p in plans] == ["rtn-int3-g64"]
    assert {u.recipe for u in untried} == {"rtn-int8-g32", "rtn-int3-g128"}
    reasons = {u.recipe: u.reason for u in untried}
    assert "would quantize nothing" in reasons["rtn-int8-g32"]
    assert reasons["rtn-int3-g128"] == "It gives every tensor the same format as rtn-int3-g64."


def test_strict_leaves_out_recipes_that_need_a_fallback(source):
    with open_model(source) as model:
        names = ("rtn-int4-g128", "rtn-int4-g32")
        plans, untried = ladder(model, names, strict=True)
        assert [p.recipe.name for p in plans] == ["rtn-int4-g32"]
        assert "needs fallbacks, which strict forbids" in untried[0].reason
        assert ladder(model, names)[0][0].fallbacks
        with pytest.raises(UsageError, match="strict forbids"):
            ladder(model, names[:1], strict=True)


def test_plans_run_from_small_to_large(source):
    with open_model(source) as model:
        plans, _ = ladder(model, LADDER)
    sizes = [p.promised_bytes for p in plans]
    assert sizes == sorted(sizes)
    assert max(sizes) < plans[0].source_bytes


def test_no_recipe_that_helps_is_an_error(tmp_path, source):
    with open_model(source) as model:
        quantize(model, find("rtn-int4-g32"), tmp_path / "small")
    with pytest.raises(UsageError, match="No recipe would make"):
        compress(tmp_path / "small", tmp_path / "out", AXES, settings("rtn-int8-g32"))
    assert not (tmp_path / "out").exists()
    with open_model(source) as model:
        with pytest.raises(UsageError, match="No recipe is named"):
            ladder(model, ())
        with pytest.raises(UnsupportedError, match="did you mean"):
            ladder(model, ("rtn-int4-g23",))


def test_inconclusive_outweighs_rejections_only_when_nothing_is_accepted():
    bad, unsure, good = (
        msgspec.structs.replace(
            sample.compress_report().attempts[0], recipe=name, evaluation=sample.evaluation(kl)
        )
        for name, kl in (("bad", 0.2), ("unsure", 0.05), ("good", 0.01))
    )
    facts = sample.facts()
    assert conclude(facts, [bad, unsure], [], 1.0).outcome is Outcome.INCONCLUSIVE
    assert "best attempt is unsure" in conclude(facts, [bad, unsure], [], 1.0).reasons[0]
    assert conclude(facts, [bad, unsure], [], 1.0).nearest == "unsure"
    assert conclude(facts, [bad, unsure, good], [], 1.0).nearest is None
    assert conclude(facts, [bad, unsure, good], [], 1.0).outcome is Outcome.ACCEPT
    assert conclude(facts, [bad], [], 1.0).outcome is Outcome.REJECT


@pytest.mark.parametrize("place", [".", "inner", ".."])
def test_the_source_is_never_in_the_way_of_the_output(tmp_path, source, place):
    own = tmp_path / "own"
    compress(source, own, AXES, settings("rtn-int8-g32"))
    before = sorted((path.name, path.stat().st_mtime_ns) for path in own.rglob("*"))
    out = (own / place).resolve()
    with pytest.raises(OutputError):
        compress(own, out, AXES, settings("rtn-int2-g32"))
    assert sorted((path.name, path.stat().st_mtime_ns) for path in own.rglob("*")) == before


def test_what_came_to_the_output_meanwhile_is_untouched(tmp_path, source):
    out = tmp_path / "out"

    def someone_else(*_):
        out.mkdir(exist_ok=True)
        (out / "thesis.txt").write_text("years of work")

    with pytest.raises(OutputError, match="was not written by fewbit compress"):
        compress(source, out, AXES, settings("rtn-int8-g32"), someone_else)
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def leave_work(source, out, wanted=None):
    """Have all of the work done and kept, and nothing delivered."""

    def someone_else(*_):
        out.mkdir(exist_ok=True)
        (out / "thesis.txt").write_text("years of work")

    with pytest.raises(OutputError):
        compress(source, out, AXES, wanted or settings("rtn-int8-g32"), someone_else)
    (out / "thesis.txt").unlink()


def test_what_was_made_is_there_for_the_next_run_where_the_output_was_taken(tmp_path, source):
    out, seen = tmp_path / "out", []
    leave_work(source, out)
    report = compress(source, out, AXES, settings("rtn-int8-g32"), lambda *s: seen.append(s))
    assert report.accepted == "rtn-int8-g32"
    assert (out / "model.safetensors").exists()
    assert not any("measuring" in what or "language" in what for what, *_ in seen)


def test_what_another_build_measured_is_no_evidence(tmp_path, source, monkeypatch):
    out = tmp_path / "out"
    leave_work(source, out)
    monkeypatch.setattr("fewbit.compress.loop.program_digest", lambda: "rebuilt")
    with pytest.raises(UsageError, match=r"another build; .* --resume never"):
        compress(source, out, AXES, settings("rtn-int8-g32"))


def test_what_was_calibrated_on_another_text_is_not_taken(tmp_path, source):
    out, text = tmp_path / "out", tmp_path / "text.txt"
    mine = CalibrationSettings(mix=(Ingredient(str(text)),), windows=4, length=16, threads=1)
    wanted = replace(settings("imatrix-int8-g32"), text=mine)
    text.write_text("the cat and the dog " * 40)
    leave_work(source, out, wanted)
    text.write_text("the dog and the cat " * 40)
    with pytest.raises(UsageError, match=r"done with another text; .* --resume never"):
        compress(source, out, AXES, wanted)
    text.write_text("the cat and the dog " * 40)
    assert compress(source, out, AXES, wanted).accepted == "imatrix-int8-g32"


def test_two_recipes_of_one_name_are_refused(tmp_path, source):
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'name = "rtn-int8-g32"\nmethod = "rtn"\n[[rules]]\nmatch = "*"\nformat = "int4-g32"\n'
    )
    with pytest.raises(UsageError, match="Two recipes are named 'rtn-int8-g32'"):
        compress(source, tmp_path / "out", AXES, settings("rtn-int8-g32", str(mine)))


def test_recipes_that_differ_in_how_inputs_are_rounded_are_both_tried(source):
    with open_model(source) as model:
        plans, untried = ladder(model, ("rtn-int4-g64", "rtn-int4-g64-wo"))
    assert len(plans) == 2
    assert not untried


def test_a_candidate_whose_logits_are_not_finite_is_left_out(tmp_path, source, monkeypatch):
    measured = module.evaluate

    def broken(source, artefact, *rest):
        if "int2" in str(artefact):
            raise NumericalError("the candidate gives values that are not finite.")
        return measured(source, artefact, *rest)

    monkeypatch.setattr(module, "evaluate", broken)
    report = compress(source, tmp_path / "out", AXES, settings("rtn-int2-g32", "rtn-int8-g32"))
    assert report.accepted == "rtn-int8-g32"
    assert "not finite" in report.untried[0].reason


def test_an_output_that_cannot_be_looked_at_is_refused(tmp_path, source):
    with pytest.raises(OutputError, match="File name too long"):
        compress(source, tmp_path / ("x" * 300), AXES, settings("rtn-int8-g32"))


def test_a_gate_that_could_accept_nothing_is_refused_before_any_work(tmp_path, source):
    asking = msgspec.structs.replace(
        MEASURING.gate, slices=(SliceRule(match="tasks/*", margin=0.1), *MEASURING.gate.slices)
    )
    chosen = replace(settings("rtn-int8-g32"), evaluation=replace(MEASURING, gate=asking))
    with pytest.raises(UsageError, match=r"'tasks/\*'.*nothing could be accepted; measure tasks"):
        compress(source, tmp_path / "out", AXES, chosen)
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_that_trains_is_refused_without_text_before_any_work(tmp_path, source):
    recipe = tmp_path / "trained.toml"
    recipe.write_text(
        'name = "trained"\nmethod = "rtn"\ntune = "weights"\n\n'
        '[[rules]]\nmatch = "*"\nformat = "int8-g32"\n'
    )
    chosen = replace(settings("rtn-int2-g32", str(recipe)), tune_windows=0)
    with pytest.raises(UsageError, match="'trained' trains, and tune_windows is 0"):
        compress(source, tmp_path / "out", AXES, chosen)
    assert list(tmp_path.iterdir()) == [recipe]
