"""Calibration text is held against what will be measured on before anything is made."""

import json
from dataclasses import replace

import pytest
from test_compress import AXES, MEASURING, source  # noqa: F401 - fixture

from fewbit.calibrate.mix import CalibrationSettings, Ingredient
from fewbit.calibrate.text import collect, document
from fewbit.compress import loop
from fewbit.compress.loop import CompressSettings, compress
from fewbit.errors import UsageError
from fewbit.evaluate.axis import Reads
from fewbit.evaluate.language.axis import LanguageAxis
from fewbit.evaluate.long_context.axis import LongContextAxis
from fewbit.quantization.target import parse_budget

TEXT = " ".join(f"word{i} and then {i * 7 % 13} more of them," for i in range(60))


@pytest.fixture
def asked(tmp_path):
    """Return settings that calibrate on a file, and axes that measure on what it holds."""
    path = tmp_path / "calibration.jsonl"
    path.write_text(json.dumps({"text": TEXT}))
    text = CalibrationSettings(mix=(Ingredient(str(path)),), windows=4, length=64)
    settings = CompressSettings(evaluation=MEASURING, text=text, budget=parse_budget("9bpw"))
    seen = collect("evaluation", [document("seen", TEXT)])
    return settings, (replace(AXES[0], documents=seen), *AXES[1:])


@pytest.mark.parametrize("named", [None, ("gptq-int8-g32",)])
def test_text_that_is_measured_on_is_refused_before_anything_is_made(
    asked, request, tmp_path, monkeypatch, named
):
    model = request.getfixturevalue("source")
    settings, axes = asked
    made = []
    monkeypatch.setattr(loop, "_attempts", lambda *given: made.append(given) or ((), ()))
    changed = {} if named is None else {"recipes": named, "budget": None}
    with pytest.raises(UsageError, match=r"document 'seen' to 100%.*calibration\.jsonl"):
        compress(model, tmp_path / "out", axes, replace(settings, **changed))
    assert not made


def test_other_text_and_recipes_without_text_are_taken(asked, request, tmp_path):
    model = request.getfixturevalue("source")
    settings, _ = asked
    assert compress(model, tmp_path / "one", AXES, settings).accepted
    named = replace(settings, recipes=("rtn-int8-g32",), budget=None)
    assert compress(model, tmp_path / "two", AXES, named).accepted


def test_axes_that_measure_on_texts_say_so():
    for axis in (LanguageAxis, LongContextAxis):
        assert isinstance(axis.texts, property)
    assert all(isinstance(axis, Reads) for axis in AXES)
