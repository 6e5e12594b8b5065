"""The calibration mix: sources, shares, masks, and the record of them."""

import json

import numpy as np
import pytest
from tiny_subjects import write_subject

from fewbit.calibrate.mix import (
    CalibrationSettings,
    Ingredient,
    calibration_windows,
)
from fewbit.errors import BadFileError, MissingError, UsageError
from fewbit.model.weights import open_model


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    with open_model(write_subject(tmp_path_factory.mktemp("calibrated") / "m")) as opened:
        yield opened


def lines(tmp_path, *values):
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(map(json.dumps, values)))
    return str(path)


def settings(*sources, windows=4, length=64, seed=0):
    mix = tuple(Ingredient(source) for source in sources)
    return CalibrationSettings(mix=mix, windows=windows, length=length, seed=seed, threads=1)


def test_the_default_mix_is_half_samples_half_text(source):
    found = calibration_windows(source, CalibrationSettings(windows=6, length=48, threads=1))
    own, text = found.facts.texts
    assert own.name == "the model's own samples" and text.name.startswith("CPython")
    assert (own.windows, text.windows) == (3, 3)
    assert found.facts.windows == len(found.windows) == len(found.masks) == 6
    assert found.facts.tokens == found.facts.counted == 6 * 48


def test_the_same_seed_gives_the_same_windows_and_hash(source):
    first, again, other = (
        calibration_windows(source, settings("samples", "default", seed=seed, length=48))
        for seed in (3, 3, 4)
    )
    assert first.facts == again.facts
    assert all(map(np.array_equal, first.windows, again.windows))
    assert first.facts.tokens_sha256 != other.facts.tokens_sha256


def test_pretokenized_data_that_is_too_long_is_cut_and_said(source, tmp_path):
    path = lines(tmp_path, {"input_ids": list(range(5, 105))}, {"input_ids": [7] * 20})
    found = calibration_windows(source, settings(path))
    assert sorted(map(len, found.windows)) == [20, 64]
    notes = found.facts.remarks
    assert any("1 pre-tokenized entry is longer than 64 tokens and cut there" in n for n in notes)
    assert any("84 tokens, fewer than its share of 256" in n for n in notes)


def test_padding_does_not_count(source, tmp_path):
    path = lines(tmp_path, {"input_ids": [0, 0, 5, 6, 7], "attention_mask": [0, 0, 1, 1, 1]})
    found = calibration_windows(source, settings(path))
    assert found.masks[0].tolist() == [False, False, True, True, True]
    assert found.facts.counted == 3


def test_conversations_go_through_the_models_template(source, tmp_path):
    said = [{"role": "user", "content": "ab</s>"}, {"role": "assistant", "content": "c"}]
    path = lines(tmp_path, {"messages": said})
    found = calibration_windows(source, settings(path))
    ids = found.windows[0].tolist()
    assert len(ids) == 4 and 2 in ids  # the template's text, its special token read as one
    assert found.masks[0].all()


def test_conversations_without_a_template_are_refused(tmp_path):
    folder = write_subject(tmp_path / "m", template=None)
    path = lines(tmp_path, {"messages": [{"role": "user", "content": "abcdef"}]})
    with open_model(folder) as opened, pytest.raises(MissingError, match="no chat template"):
        calibration_windows(opened, settings(path))


def test_text_windows_begin_as_the_tokenizer_begins_a_text(source, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("a" * 63 * 9)
    found = calibration_windows(source, settings(str(path), windows=3))
    assert len(found.windows) == 3
    assert all(window[0] == 1 and len(window) == 64 for window in found.windows)


def test_a_rest_is_taken_last(source, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("a" * (63 * 3 + 9))
    whole = calibration_windows(source, settings(str(path), windows=3, seed=5))
    assert [len(window) for window in whole.windows] == [64] * 3
    more = calibration_windows(source, settings(str(path), windows=4, seed=5))
    assert [len(window) for window in more.windows] == [64, 64, 64, 10]


def test_shares_are_of_tokens(source, tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name[0] * 2000)
    mix = (Ingredient(str(tmp_path / "a.txt"), 3), Ingredient(str(tmp_path / "b.txt"), 1))
    chosen = CalibrationSettings(mix=mix, windows=8, length=64)
    facts = calibration_windows(source, chosen).facts
    assert [text.windows for text in facts.texts] == [6, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"input_ids": [5, 6, 9999, 8]}', "token id 9999, outside the vocabulary of 320"),
        ('{"input_ids": [5, 6]}', "no calibration window of 4 tokens"),
    ],
)
def test_tokens_that_cannot_be_are_refused(source, tmp_path, content, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(BadFileError, match=message):
        calibration_windows(source, settings(str(path)))


@pytest.mark.parametrize("changed", [{"windows": 0}, {"length": 7}, {"mix": ()}])
def test_settings_that_cannot_be_are_refused(changed):
    with pytest.raises(UsageError):
        CalibrationSettings(**changed)
    with pytest.raises(UsageError):
        CalibrationSettings(mix=(Ingredient("samples", 0.0),))
