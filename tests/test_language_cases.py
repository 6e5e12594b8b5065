"""What ruined others' figures of language, each planted in a whole evaluation and caught."""

import json

import msgspec
import numpy as np
import pytest
from tiny_arms import arms_of
from tiny_subjects import (
    CONFIG,
    begin_with_bos,
    letters,
    sharp_weights,
    text_alone,
    tokenizer,
    write_subject,
)
from tokenizers import processors

from fewbit.calibrate.text import read_text
from fewbit.errors import IdentityError, NumericalError, UsageError
from fewbit.evaluate.evaluation import EvaluationSettings, evaluate
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.calibration import CalibrationFacts, CalibrationText
from fewbit.records.manifest import manifest_path, read_manifest

DOCUMENTS = letters(documents=4, characters=60)
SETTINGS = EvaluationSettings(executor="reference", threads=1, floor=False)


def measured(source, candidate, documents=DOCUMENTS, **settings):
    axis = text_alone(documents, windows=4, **{"window_tokens": 32, **settings})
    return evaluate(source, candidate, [axis], SETTINGS)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_subject(tmp_path_factory.mktemp("cases") / "source", weights=sharp_weights())


def begins_with(*tokens):
    backend = tokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join([*tokens, "$A"]), special_tokens=[("<s>", 1)]
    )
    return backend


@pytest.mark.parametrize(("tokens", "met"), [((), r"\[\]"), (("<s>", "<s>"), r"\[1, 1\]")])
def test_a_beginning_that_is_missing_or_there_twice(tmp_path, source, tokens, met):
    """lm-eval #2676 and #3333."""
    other = write_subject(tmp_path / "other", weights=sharp_weights(), backend=begins_with(*tokens))
    with pytest.raises(IdentityError, match=rf"puts \[1\] before a text .* candidate's {met}"):
        measured(source, other)
    if tokens:
        with pytest.raises(IdentityError, match="begins with <s> twice"):
            measured(other, other)


def test_how_a_text_begins_is_in_the_record(source):
    found = measured(source, source)
    assert found.language.text.bos == "<s> (1)"
    assert {arm.begins for arm in found.arms} == {"<s> (1)"}
    (finding,) = found.axes[-1].findings
    assert (finding.name, finding.passed) == ("language/begins-once", True)


def test_an_old_tokenizer(tmp_path, source):
    """llama.cpp #7476: a perplexity of 15.5 instead of 6.2, without a word."""
    backend = begin_with_bos(tokenizer(merges=(("h", "e"), ("t", "he"))))
    old = write_subject(tmp_path / "old", weights=sharp_weights(), backend=backend)
    with pytest.raises(IdentityError):
        measured(source, old)


def test_another_vocabulary_or_context(tmp_path, source):
    """llama.cpp's tool logs both and goes on."""
    backend = begin_with_bos(tokenizer(merges=(("t", "h"), ("th", "a"))))
    other = write_subject(tmp_path / "other", weights=sharp_weights(), backend=backend)
    with pytest.raises(IdentityError, match="Token 260 is 'the' in the source and 'tha'"):
        measured(source, other)
    config = {**CONFIG, "max_position_embeddings": 256}
    short = write_subject(tmp_path / "short", weights=sharp_weights(), config=config)
    with pytest.raises(IdentityError, match="context is 512 and the candidate's 256"):
        measured(source, short)
    with pytest.raises(UsageError, match="window_tokens is 300, but the model was made for 256"):
        measured(short, short, window_tokens=300)


def test_logits_that_are_not_finite(tmp_path, source):
    """exllamav3 leaves such positions out of its means. Every weight here is finite."""
    weights = sharp_weights()
    weights["model.norm.weight"] = np.full_like(weights["model.norm.weight"], 3e38)
    weights["model.embed_tokens.weight"] *= np.float32(64)
    bad = write_subject(tmp_path / "bad", weights=weights)
    axis = text_alone(DOCUMENTS, windows=4, window_tokens=32)
    with pytest.raises(NumericalError, match=r"In document 'd0' the candidate .* at position 0"):
        axis.run(arms_of(source, bad), lambda *_: None)


def test_a_candidate_that_was_calibrated_on_the_text(tmp_path, source):
    """AutoGPTQ #650: a perplexity of 6.6 instead of 17.5."""
    path = tmp_path / "mine.jsonl"
    texts = [" ".join(f"word{i}of{n}" for i in range(40)) for n in range(4)]
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    with open_model(source) as model:
        quantize(model, find("rtn-int8-g32"), tmp_path / "small")
    facts = CalibrationFacts(
        texts=(CalibrationText(name=str(path), sha256="0", windows=4),),
        windows=4,
        window_tokens=32,
        tokens=128,
        counted=128,
        tokens_sha256="0",
    )
    manifest = msgspec.structs.replace(read_manifest(tmp_path / "small"), calibration=facts)
    place = manifest_path(tmp_path / "small")
    place.write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(UsageError) as caught:
        measured(source, tmp_path / "small", read_text(path))
    assert "4 of 4 evaluation documents are in the calibration text" in str(caught.value)
    assert 'to 100%, as in "word0of0 word1of0' in str(caught.value)
    measured(source, tmp_path / "small")
