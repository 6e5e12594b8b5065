"""Damaged models with all their metadata: each is described, or refused by an error of ours.

`test_fuzz` damages containers; here damage reaches the configuration, the tokenizer and the Program
behind it. Warnings are errors, so a number that overflows on its way is found too.
"""

from __future__ import annotations

import random
from pathlib import Path

import gguf
import pytest
from hostile.mutate import mutate
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface
from tiny_subjects import write_subject
from tiny_tokenizers import byte_level, sentence_piece

from fewbit.errors import FewbitError
from fewbit.model import gguf as model_gguf
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.facts import inspect_model
from fewbit.model.runner import RunSettings
from fewbit.model.weights import open_model

DAMAGED = 250
REFERENCE = RunSettings(executor="reference")


def whole_gguf(folder: Path, name: str, tokenizer: dict) -> tuple[Path, int]:
    """Write a model with a tokenizer; return it and where its tensors' data begins."""
    plain = gguf.GGUFReader(
        write_gguf(folder / "plain.gguf", CONFIGS[name], random_weights(CONFIGS[name]))
    )
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, plain.fields["general.architecture"].contents())
    for key, field in plain.fields.items():
        if not key.startswith(("GGUF.", "tokenizer.")) and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0])
    for key, value in tokenizer.items():
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)
    for tensor in plain.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, gguf.GGUFReader(path).data_offset


def is_described(path: Path) -> bool:
    try:
        with open_model(path) as source:
            inspect_model(source, lambda: planned_kernels(source, REFERENCE))
    except FewbitError:
        return False
    return True


def count_described(model: Path, path: Path, end: int | None, damaged: int) -> int:
    """Damage one file of a model before byte `end`; return how often it is still described."""
    chance = random.Random(20_261_129)
    sound = path.read_bytes()
    end = len(sound) if end is None else end
    described = 0
    for _ in range(damaged):
        path.write_bytes(mutate(sound[:end], chance) + sound[end:])
        described += is_described(model)
    path.write_bytes(sound)
    return described


@pytest.mark.parametrize(
    ("name", "tokenizer", "damaged"),
    [
        ("llama3", byte_level("smollm"), DAMAGED),
        ("gemma3", sentence_piece(), DAMAGED),
        ("mixtral", byte_level("qwen2"), DAMAGED // 5),
    ],
)
def test_a_damaged_gguf_model_is_described_or_refused(tmp_path, name, tokenizer, damaged):
    path, data = whole_gguf(tmp_path, name, tokenizer)
    assert is_described(path)
    assert 0 < count_described(path, path, data, damaged) < damaged


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_folder_is_described_or_refused(tmp_path, file):
    folder = write_subject(tmp_path / "model")
    assert is_described(folder)
    assert 0 < count_described(folder, folder / file, None, DAMAGED // 3) <= DAMAGED // 3


def test_a_damaged_configuration_of_a_mixture_is_described_or_refused(tmp_path):
    config = CONFIGS["qwen3-moe-sparse"]
    folder = write_huggingface(tmp_path / "model", config, random_weights(config))
    assert is_described(folder)
    assert 0 < count_described(folder, folder / "config.json", None, DAMAGED // 3) < DAMAGED // 3


def test_an_unbounded_divisor_would_be_found(tmp_path, monkeypatch):
    """Negative control: the bound of rope divisors gone, one of them overflows."""
    monkeypatch.setattr(model_gguf, "DIVISOR_LEAST", 0.0)
    config = CONFIGS["llama3"]
    path = write_gguf(tmp_path / "model.gguf", config, random_weights(config))
    reader = gguf.GGUFReader(path)
    at = next(t for t in reader.tensors if t.name == model_gguf.ROPE_DIVISORS).data_offset
    content = bytearray(path.read_bytes())
    content[at : at + 4] = (1).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(RuntimeWarning, match="overflow"):
        is_described(path)
