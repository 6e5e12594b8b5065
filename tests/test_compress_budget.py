"""The loop within a budget, on tiny models: what is written, and how a stopped run goes on."""

import json
from dataclasses import replace

import pytest
from test_compress import AXES, MEASURING, source  # noqa: F401 - fixture
from tiny_subjects import letters

from fewbit.calibrate.mix import CalibrationSettings, Ingredient
from fewbit.compress import loop as module
from fewbit.compress.ladder import untried
from fewbit.compress.loop import CompressSettings, compress
from fewbit.compress.making import Workshop
from fewbit.errors import NumericalError, StoppedError, UsageError
from fewbit.quantization.target import BitsTarget, parse_budget
from fewbit.records.base import from_json
from fewbit.records.evaluation import CompressReport
from fewbit.records.gate import Gate, SliceRule
from fewbit.records.outcome import Outcome

STRICTEST = Gate(
    slices=(
        SliceRule(
            match="language/kl", margin=1e-9, minimum_items=12, minimum_clusters=12, excess=False
        ),
    )
)


def settings(budget, **changes):
    return CompressSettings(budget=parse_budget(budget), evaluation=MEASURING, **changes)


def test_the_first_by_cost_is_taken_and_lies_within_the_budget(tmp_path, source):  # noqa: F811
    out = tmp_path / "out"
    report = compress(source, out, AXES, settings("9bpw"))
    assert (report.accepted, report.outcome) == ("rtn-int8-g32", Outcome.ACCEPT)
    assert "the first, by cost, that the gate accepts within 9bpw" in report.reasons[0]
    accepted = report.attempts[-1].evaluation.candidate
    assert accepted.bits_per_weight <= 9
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "manifest.json").is_file()


def test_llama_cpp_gets_a_file(tmp_path, source):  # noqa: F811
    report = compress(source, tmp_path / "out", AXES, settings("12bpw", runtime="llama.cpp"))
    assert report.accepted == "rtn-q8_0"
    assert (tmp_path / "out" / "model.gguf").is_file()


def test_vllm_gets_an_export_that_was_measured_itself(tmp_path, source):  # noqa: F811
    lenient = Gate(slices=(SliceRule(match="language/*", margin=2.0, minimum_items=12),))
    chosen = settings("20bpw", runtime="vllm")
    chosen = replace(chosen, evaluation=replace(MEASURING, gate=lenient))
    report = compress(source, tmp_path / "out", AXES, chosen)
    assert report.accepted == "rtn-int4-g32-wo"
    assert (tmp_path / "out" / "config.json").is_file()
    kernels = report.attempts[-1].evaluation.candidate_kernels
    assert {kernel.activations for kernel in kernels} <= {"bf16", "f32"}


_ALL = module.all_steps


def letters_file(folder):
    path = folder / "letters.jsonl"
    texts = letters(documents=40, characters=100).documents[20:]
    path.write_text("\n".join(json.dumps({"text": d.text}) for d in texts))
    return path


def module_steps(*arguments, **options):
    """Return rounding and raising alone."""
    steps = _ALL(*arguments, **options)
    return [step for step in steps if step.name.startswith(("rtn", "raised"))]


def hopeless(tmp_path, source, monkeypatch, **changes):  # noqa: F811
    """Run where nothing is accepted, without what takes long on a tiny model."""
    monkeypatch.setattr(module, "all_steps", module_steps)
    chosen = settings("9bpw", **changes)
    measuring = replace(MEASURING, gate=STRICTEST)
    return compress(source, tmp_path / "out", AXES, replace(chosen, evaluation=measuring))


def test_the_closest_is_kept_apart_with_the_reasons(tmp_path, source, monkeypatch):  # noqa: F811
    report = hopeless(tmp_path, source, monkeypatch)
    assert (report.outcome, report.accepted) == (Outcome.REJECT, None)
    assert report.closest == "rtn-int8-g32"
    assert "the closest, rtn-int8-g32" in report.reasons[0]
    assert any("margin" in reason for reason in report.reasons[1:])
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["attempts", "closest", "report.html", "report.json"]
    assert (tmp_path / "out" / "closest" / "manifest.json").is_file()
    assert [u.recipe for u in report.untried] == ["raised-9bpw"]


def with_base(*arguments, **options):
    """Return rounding, the best way of finding codes, and raising."""
    steps = _ALL(*arguments, **options)
    return [s for s in steps if s.name.startswith(("rtn", "awq-gptq-refined", "raised"))]


def no_number(_shop, planned, *_):
    raise NumericalError(f"{planned.recipe.name} gives NaN.")


def over(_shop, recipe):
    return untried(recipe.name, "The runtime would not take it.")


@pytest.mark.parametrize("cause", ["hopeless", "failed", "refused"])
def test_what_cannot_be_made_is_not_built_on(tmp_path, source, monkeypatch, cause):  # noqa: F811
    """Missing among the attempts may mean hopeless by itself, and just that is built on."""
    bases = []

    def seen(_step, _tried, base, *_):
        bases.append(base and base.name)
        return "Seen."

    def only(planted, real, recipe_of):
        def chosen(shop, given, *rest):
            is_base = recipe_of(given).name.startswith("awq-gptq-refined")
            return (planted if is_base else real)(shop, given, *rest)

        return chosen

    monkeypatch.setattr(module, "all_steps", with_base)
    monkeypatch.setattr(module, "raised", seen)
    if cause == "failed":
        monkeypatch.setattr(module, "reason_to_leave_out", lambda *_, **__: "")
        make = only(no_number, Workshop.make, lambda planned: planned.recipe)
        monkeypatch.setattr(Workshop, "make", make)
    if cause == "refused":
        monkeypatch.setattr(module, "planned", only(over, module.planned, lambda recipe: recipe))
    measuring = replace(MEASURING, gate=STRICTEST)
    compress(source, tmp_path / "out", AXES, replace(settings("9bpw"), evaluation=measuring))
    assert bases == ["awq-gptq-refined-int8-g32" if cause == "hopeless" else None]


def test_a_stopped_run_goes_on_with_what_it_had(tmp_path, source, monkeypatch):  # noqa: F811
    measured = []
    real = module.evaluate

    def counted(*arguments):
        measured.append(arguments[1])
        if len(measured) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, "evaluate", counted)
    chosen = CompressSettings(recipes=("rtn-int2-g32", "rtn-int8-g32"), evaluation=MEASURING)
    with pytest.raises(StoppedError, match="the same job goes on there"):
        compress(source, tmp_path / "out", AXES, chosen)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.work"]
    with pytest.raises(UsageError, match="begin anew with --resume never"):
        compress(source, tmp_path / "out", AXES, replace(chosen, recipes=("rtn-int8-g32",)))
    report = compress(source, tmp_path / "out", AXES, chosen)
    assert len(measured) == 3  # int2 once, int8 twice
    assert [a.recipe for a in report.attempts] == ["rtn-int2-g32", "rtn-int8-g32"]
    stored = (tmp_path / "out" / "report.json").read_bytes()
    assert from_json(CompressReport, stored, name="report") == report
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_recipes_of_one_s_own_are_held_to_the_budget_and_none_is_foreseen(tmp_path, source):  # noqa: F811
    recipes = "rtn-int2-g32", "rtn-int8-g32"
    report = compress(source, tmp_path / "out", AXES, settings("9bpw", recipes=recipes))
    assert [a.recipe for a in report.attempts] == list(recipes)
    with pytest.raises(UsageError, match=r"None of the recipes lies within 4bpw\. rtn-int8-g32"):
        compress(source, tmp_path / "no", AXES, settings("4bpw", recipes=recipes[1:]))


def test_a_transformed_model_is_still_the_same_after_an_export(tmp_path, source, monkeypatch):  # noqa: F811
    awq = [
        step for step in _ALL("int4-g32", "vllm", "20bpw", tuning=False) if "awq-int4" in step.name
    ]
    monkeypatch.setattr(module, "all_steps", lambda *_, **__: awq)
    mix = (Ingredient(str(letters_file(tmp_path))),)
    text = CalibrationSettings(mix=mix, windows=4, length=48, threads=1)
    chosen = settings("20bpw", runtime="vllm", text=text)
    report = compress(source, tmp_path / "out", AXES, chosen)
    declared = report.attempts[0].evaluation.identity.declared
    assert {change.change for change in declared} == {"awq"}


def test_a_budget_that_nothing_fits_is_refused_with_what_the_smallest_takes(tmp_path, source):  # noqa: F811
    with pytest.raises(UsageError, match=r"lies within 1bpw\..*int2-g32: it takes"):
        compress(source, tmp_path / "out", AXES, settings("1bpw"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "4.5", "0bpw", "-3MB", "lots", "4.5 bpw per weight"])
def test_what_is_no_budget_is_refused(text):
    if text == "4.5":
        assert parse_budget(text).bytes == 4  # a bare number is bytes, as in --target-size
        return
    with pytest.raises(UsageError):
        parse_budget(text)


def test_bits_and_sizes_are_budgets():
    assert parse_budget("4.5bpw") == BitsTarget(4.5)
    assert parse_budget("90MB").bytes == 90_000_000


@pytest.mark.parametrize("windows", [-1, 1, 7])
def test_too_little_to_train_on_is_refused_before_anything_is_made(windows):
    with pytest.raises(UsageError, match="give at least 8"):
        CompressSettings(tune_windows=windows)
