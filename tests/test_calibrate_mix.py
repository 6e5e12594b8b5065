"""The calibration mix: sources, shares, masks, and the record of them."""

import json

import numpy as np
import pytest
from tiny_subjects import write_subject

from fewbit.calibrate import mix, portion
from fewbit.calibrate.mix import (
    CalibrationSettings,
    Ingredient,
    calibration_windows,
)
from fewbit.errors import BadFileError, MissingError, UsageError
from fewbit.model.weights import open_model
from fewbit.tokens.chat_template import ChatTemplate


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


@pytest.mark.parametrize("padding", [3, 500])
@pytest.mark.parametrize("side", ["left", "right"])
def test_case_22_padded_tokens_are_calibrated_on_as_they_would_be_alone(
    source, tmp_path, side, padding
):
    """Also where there is more padding than a window is long."""
    ids, pad = [5, 6, 7, 8, 9], [0] * padding
    padded, mask = ([*pad, *ids], [*pad, *[1] * 5])
    if side == "right":
        padded, mask = [*ids, *pad], [*[1] * 5, *pad]
    found = calibration_windows(
        source, settings(lines(tmp_path, {"input_ids": padded, "attention_mask": mask}))
    )
    alone = calibration_windows(source, settings(lines(tmp_path, {"input_ids": ids})))
    assert found.facts.tokens_sha256 == alone.facts.tokens_sha256
    assert [window.tolist() for window in found.windows] == [ids]
    assert not any("longer than" in remark for remark in found.facts.remarks)


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


@pytest.mark.parametrize("token", [10**30, -(10**30), 1 << 63])
def test_ids_beyond_any_integer_are_refused(source, tmp_path, token):
    path = lines(tmp_path, {"input_ids": [5, 6, 7, 8, token]})
    with pytest.raises(BadFileError, match="outside the vocabulary"):
        calibration_windows(source, settings(path))


def test_half_a_surrogate_pair_is_read_as_a_replacement(source, tmp_path):
    path = tmp_path / "some.jsonl"
    said = {"role": "user", "content": "abc \ud83d"}
    path.write_text("\n".join(map(json.dumps, ({"text": "abcdef\udc00"}, {"messages": [said]}))))
    assert calibration_windows(source, settings(str(path))).facts.tokens


@pytest.mark.parametrize("share", [0, -1, float("nan"), float("inf"), "half"])
def test_shares_that_cannot_be_are_refused(share):
    with pytest.raises(UsageError, match="a finite share above 0"):
        CalibrationSettings(mix=(Ingredient("samples", share),))


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_seeds_that_cannot_be_are_refused(seed):
    with pytest.raises(UsageError, match="seed is"):
        CalibrationSettings(seed=seed)


def test_of_a_large_source_a_part_is_read_and_said(source, tmp_path, monkeypatch):
    monkeypatch.setattr(portion, "LEAST", 1000)
    path = lines(tmp_path, *({"text": f"{n:04d}" * 50} for n in range(200)))
    found = calibration_windows(source, settings(path, windows=1))
    assert any("of its 40,000 characters 1,000, evenly" in note for note in found.facts.remarks)


def test_the_template_is_read_once(source, tmp_path, monkeypatch):
    """It takes milliseconds, and a file has thousands of conversations."""
    made = []

    class Counted(ChatTemplate):
        def __init__(self, *given):
            made.append(1)
            super().__init__(*given)

    monkeypatch.setattr(mix, "ChatTemplate", Counted)
    said = [{"role": "user", "content": "abcdef"}]
    calibration_windows(source, settings(lines(tmp_path, *[{"messages": said}] * 9)))
    assert len(made) == 1


def test_windows_beyond_the_context_are_refused_before_anything_is_read(source):
    longer = settings("absent.txt", "samples", length=source.config.context + 1)
    with pytest.raises(UsageError, match="give a smaller --window"):
        calibration_windows(source, longer)
