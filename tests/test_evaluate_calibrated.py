"""A candidate is not evaluated on what it was calibrated on, and what cannot be told is said."""

import json
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from test_quantize_calibrated import SETTINGS, folder, linear

from fewbit.calibrate.mix import SAMPLES_TEXT
from fewbit.calibrate.text import Half, collect, default_name, default_text, document, read_text
from fewbit.checkpoint.checkpoint import GgufFacts
from fewbit.errors import UsageError
from fewbit.evaluate.language.calibrated import refuse_calibrated, refuse_seen
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.records.calibration import CalibrationText, ImportanceFacts

STORY = " ".join(f"word{i} of a story that goes on" for i in range(400))
OTHER = " ".join(f"term{i} in a text of another kind" for i in range(400))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    place = tmp_path_factory.mktemp("calibrated")
    return quantize(open_model(folder(place)), linear("rtn"), place / "out")


def manifest_of(bare, *names: str):
    texts = tuple(CalibrationText(name=name, sha256="0", windows=1) for name in names)
    return replace(bare, calibration=replace(SETTINGS.calibration.facts, texts=texts))


def test_a_text_that_was_calibrated_on_is_refused_and_another_is_not(tmp_path, bare):
    path, other = tmp_path / "story.txt", tmp_path / "other.txt"
    path.write_text(STORY)
    other.write_text(OTHER)
    manifest = manifest_of(bare, str(path))
    with pytest.raises(UsageError, match="evaluation documents are in the calibration text"):
        refuse_calibrated(read_text(path), manifest)
    assert refuse_calibrated(read_text(other), manifest) == ()
    assert refuse_calibrated(read_text(path), None) == ()
    path.unlink()
    (note,) = refuse_calibrated(read_text(other), manifest)
    assert f"calibrated on '{path}', which is not here" in note


def test_conversations_and_token_ids_are_compared_too(tmp_path, bare):
    messages, ids = tmp_path / "chat.jsonl", tmp_path / "ids.jsonl"
    messages.write_text(json.dumps({"messages": [{"role": "user", "content": STORY}]}))
    ids.write_text(
        json.dumps({"input_ids": [9, *STORY.encode()], "attention_mask": [0, *[1] * len(STORY)]})
    )
    story = collect("story", [document("d", STORY)])
    with pytest.raises(UsageError, match="to 100%"):
        refuse_calibrated(story, manifest_of(bare, str(messages)))
    with pytest.raises(UsageError, match="to 100%"):
        refuse_calibrated(story, manifest_of(bare, str(ids)), lambda ids: bytes(ids).decode())


def test_the_default_calibration_text_is_compared_with_a_text_of_ones_own(bare):
    mine = collect("mine", default_text(Half.CALIBRATION).documents[:2])
    manifest = manifest_of(bare, SAMPLES_TEXT, default_name(Half.CALIBRATION))
    with pytest.raises(UsageError, match="2 of 2 evaluation documents"):
        refuse_calibrated(mine, manifest)
    assert refuse_calibrated(collect("other", [document("d", OTHER)]), manifest) == ()
    assert refuse_calibrated(default_text(Half.EVALUATION), manifest) == ()


def test_an_importance_matrix_of_unknown_text_is_said(bare):
    facts = ImportanceFacts(name="their.imatrix", sha256="0", tensors=3)
    manifest = replace(bare, importance=facts)
    (note,) = refuse_calibrated(collect("other", [document("d", OTHER)]), manifest)
    assert "importance matrix 'their.imatrix'" in note


def test_the_text_that_llama_cpp_names_is_compared(tmp_path):
    path, other = tmp_path / "theirs.txt", collect("other", [document("d", OTHER)])
    facts = GgufFacts({"quantize.imatrix.dataset": str(path)})
    checkpoint = SimpleNamespace(facts=facts)
    tokenizer = SimpleNamespace(decode=lambda ids: bytes(ids).decode())
    candidate = SimpleNamespace(
        model=SimpleNamespace(checkpoint=checkpoint), tokenizer=tokenizer, manifest=None
    )
    (note,) = refuse_seen(other, candidate)
    assert f"calibrated on '{path}', which is not here" in note
    path.write_text(STORY)
    assert refuse_seen(other, candidate) == ()
    with pytest.raises(UsageError, match="'d' to 100%"):
        refuse_seen(collect("story", [document("d", STORY)]), candidate)
