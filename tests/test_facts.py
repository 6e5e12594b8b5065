import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface
from tiny_subjects import tokenizer, write_subject
from tokenizers import pre_tokenizers

from fewbit.errors import KernelError
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.facts import inspect_model, model_facts, quantized_formats
from fewbit.model.runner import RunSettings
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import built_in

REFERENCE = RunSettings(executor="reference")


def inspection_of(path):
    with open_model(path) as source:
        return inspect_model(source, lambda: planned_kernels(source, REFERENCE))


@pytest.fixture
def folder(tmp_path):
    return write_huggingface(
        tmp_path / "tiny", CONFIGS["gemma3"], random_weights(CONFIGS["gemma3"])
    )


def test_sizes_are_those_of_the_stored_tensors(folder):
    weights = random_weights(CONFIGS["gemma3"])
    with open_model(folder) as source:
        facts = model_facts(source)
    assert facts.name == "tiny"
    assert facts.architecture == "gemma3_text"
    assert facts.parameters == sum(w.size for w in weights.values())
    assert facts.bytes == 4 * facts.parameters
    assert facts.bits_per_weight == 32
    assert [share.format for share in facts.formats] == ["f32"]
    assert not facts.quantized


def test_a_model_without_tokenizer_is_described_with_the_hazard(folder):
    inspection = inspection_of(folder)
    assert inspection.tokenizer is None
    assert {hazard.name for hazard in inspection.hazards} == {"no_tokenizer", "no_chat_template"}
    assert (inspection.layers, inspection.windowed_layers, inspection.tied) == (4, 2, True)
    assert len(inspection.kernels) == 4 * 7 + 1


def test_vectors_alone_do_not_make_a_model_quantized(tmp_path):
    weights = random_weights(CONFIGS["llama"])
    path = write_gguf(tmp_path / "model.gguf", CONFIGS["llama"], weights)
    with open_model(path) as source:
        assert quantized_formats(source) == ()
        assert model_facts(source).name == "model"


def test_unused_tensors_are_a_hazard(tmp_path):
    extra = {"mtp.weight": np.zeros((2, 2), np.float32)}
    weights = random_weights(CONFIGS["llama"]) | extra
    found = inspection_of(write_huggingface(tmp_path / "m", CONFIGS["llama"], weights)).hazards
    assert "1 stored tensors take no part in the model: mtp.weight." in [h.meaning for h in found]


@pytest.mark.parametrize(
    ("merges", "name", "meaning"),
    [
        (1, "vocabulary_padding", "The embedding has 60 rows beyond the tokenizer's 260 ids"),
        (70, "vocabulary_short", "ids up to 328 but the embedding only 320 rows"),
    ],
)
def test_rows_and_ids_of_two_sizes_are_a_hazard(tmp_path, merges, name, meaning):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = tuple(("a", letter) for letter in letters[:merges])
    hazards = inspection_of(write_subject(tmp_path / "m", backend=tokenizer(merges=pairs))).hazards
    assert any(hazard.name == name and meaning in hazard.meaning for hazard in hazards)


def test_a_quantized_model_is_named_as_such_with_what_that_means(tmp_path):
    with open_model(write_subject(tmp_path / "whole")) as source:
        quantize(source, built_in("rtn-int4-g32"), tmp_path / "small")
    names = [[h.name for h in inspection_of(tmp_path / m).hazards] for m in ("whole", "small")]
    assert ["already_quantized" in found for found in names] == [False, True]
    hazard = next(h for h in inspection_of(tmp_path / "small").hazards if "already" in h.name)
    assert "stored in int4-g32, int6-g32: figures against this source" in hazard.meaning


def test_a_model_without_kernels_is_described_with_the_hazard(folder):
    def none():
        raise KernelError("no kernel for q.")

    with open_model(folder) as source:
        inspection = inspect_model(source, none)
    assert inspection.kernels == ()
    assert "no kernel for q." in [hazard.meaning for hazard in inspection.hazards]
