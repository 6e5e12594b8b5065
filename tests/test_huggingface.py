"""Folders of JSON files and safetensors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hostile import folders

from fewbit.checkpoint import open_checkpoint
from fewbit.checkpoint.checkpoint import HuggingFaceFacts
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint, read_facts
from fewbit.errors import MissingError, UsageError


def single(folder: Path) -> dict[str, np.ndarray]:
    tensors = {
        "norm.weight": np.arange(4, dtype=np.float32),
        "up.weight": np.arange(8, dtype=np.float16).reshape(2, 4),
        "experts": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    }
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return tensors


def test_a_folder_is_read(tmp_path: Path) -> None:
    tensors = single(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.path == tmp_path
        for name, array in tensors.items():
            assert checkpoint.tensors[name].shape == array.shape
            read = checkpoint.read(name)
            assert read.shape == (array.size // 4, 4)
            assert read.codes.tobytes() == array.tobytes()
            assert checkpoint.digest(name) == hashlib.sha256(array.tobytes()).hexdigest()
            checkpoint.release(name)
            assert checkpoint.read(name).codes.tobytes() == array.tobytes()


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    with open_checkpoint(folders.sharded(tmp_path)) as checkpoint:
        assert list(checkpoint.tensors) == ["a", "b"]
        assert checkpoint.read("b").codes.tobytes() == bytes(4)
        with pytest.raises(MissingError, match="no tensor 'c'"):
            checkpoint.read("c")


def test_links_into_a_store_are_followed(tmp_path: Path) -> None:
    """The hub's own cache keeps a snapshot as links into a folder of blobs beside it."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    single(blobs)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(file)
    with open_checkpoint(snapshot) as checkpoint:
        assert "up.weight" in checkpoint.tensors


def test_absent_files_are_none(tmp_path: Path) -> None:
    single(tmp_path)
    assert read_facts(tmp_path) == HuggingFaceFacts({"model_type": "llama"}, None, None, None, None)


def test_all_files_are_read(tmp_path: Path) -> None:
    single(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 2}')
    (tmp_path / "tokenizer.json").write_bytes(b'{"model": 1}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    (tmp_path / "chat_template.jinja").write_text("né")
    facts = read_facts(tmp_path)
    assert facts.generation_config == {"eos_token_id": 2}
    assert facts.tokenizer_json == b'{"model": 1}'
    assert facts.tokenizer_config == {"chat_template": "old"}
    assert facts.chat_template == "né"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("plain", "plain"),
        ([{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tools", "template": "t"}], None),
        (None, None),
    ],
)
def test_the_template_of_the_tokenizer(stored: object, expected: object, tmp_path: Path) -> None:
    single(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": stored}))
    assert read_facts(tmp_path).chat_template == expected


def test_a_closed_checkpoint_says_so(tmp_path: Path) -> None:
    single(tmp_path)
    checkpoint = HuggingFaceCheckpoint(tmp_path)
    checkpoint.close()
    with pytest.raises(UsageError, match="was closed"):
        checkpoint.read("norm.weight")
