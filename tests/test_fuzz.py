"""20,000 damaged files of each kind: every one is refused by an error of ours, or read completely.

Nothing else may leave `open_checkpoint` or `read`: no other exception, no warning, no crash.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hostile import folders, gguf_files, safetensors_files
from hostile.mutate import mutate

from fewbit.checkpoint import open_checkpoint
from fewbit.checkpoint.artefact import encoded_info, write_artefact
from fewbit.checkpoint.gguf_cursor import Cursor
from fewbit.errors import FewbitError
from fewbit.formats.registry import encode, parse_format

DAMAGED = 20_000
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: 100,000 small files are written to it."""
    where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="fewbit-fuzz-", dir=where))
    yield path
    shutil.rmtree(path)


def one_gguf(folder: Path) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(gguf_files.sound())
    return path


def one_folder(folder: Path) -> Path:
    return safetensors_files.folder_with(model__safetensors=safetensors_files.sound())(folder)


def one_artefact(folder: Path) -> Path:
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    formats = ("int4-g32", "int3-row-asym", "q8_0", "bf16")
    tensors = {f"w{i}": encode(values, parse_format(name)) for i, name in enumerate(formats)}
    path = folder / "artefact"
    write_artefact(
        path,
        config={"model_type": "llama"},
        sidecars={"tokenizer_config.json": b'{"chat_template": "{{ x }}"}'},
        tensors=[encoded_info(name, tensor.spec, tensor.shape) for name, tensor in tensors.items()],
        read=tensors.__getitem__,
        manifest=lambda: b"{}",
    )
    return path


KINDS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "gguf": (one_gguf, ("",)),
    "safetensors": (one_folder, ("model.safetensors",)),
    "shards": (folders.sharded, (folders.INDEX, folders.INDEX, folders.SECOND, "config.json")),
    "artefact": (
        one_artefact,
        ("model.safetensors", "model.safetensors", "config.json", "tokenizer_config.json"),
    ),
}


def read_all(path: Path) -> None:
    """Open a checkpoint, look at every byte of every tensor, and close it."""
    with open_checkpoint(path) as checkpoint:
        for name, info in checkpoint.tensors.items():
            tensor = checkpoint.read(name)
            assert tensor.shape == info.matrix_shape
            assert tensor.nbytes == info.nbytes
            assert tensor.codes.tobytes()


def is_read(path: Path) -> bool:
    try:
        read_all(path)
    except FewbitError:
        return False
    return True


def count_read(kind: str, folder: Path, damaged: int) -> int:
    """Return how many of `damaged` files could still be read."""
    make, files = KINDS[kind]
    path = make(folder)
    chance = random.Random(20_261_129)
    sound = {name: (path / name).read_bytes() for name in files}
    read = 0
    for _ in range(damaged):
        name = chance.choice(files)
        (path / name).write_bytes(mutate(sound[name], chance))
        read += is_read(path)
        (path / name).write_bytes(sound[name])
    return read


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_refused_or_read(kind: str, folder: Path) -> None:
    # Damage to data, names or texts cannot be seen; damage to structure is a good part of it.
    assert 0 < count_read(kind, folder, DAMAGED) < DAMAGED * 0.8


@pytest.mark.parametrize("kind", ["gguf", "safetensors", "artefact"])
def test_a_file_cut_anywhere_is_refused_or_read(kind: str, folder: Path) -> None:
    make, files = KINDS[kind]
    path = make(folder)
    target = path / files[0]
    content = target.read_bytes()
    whole = 0
    for length in range(len(content)):
        target.write_bytes(content[:length])
        whole += is_read(path)
    # A GGUF file ends in padding, which may be cut; nothing else may.
    assert whole <= (31 if kind == "gguf" else 0)


def test_a_missing_check_would_be_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the bounds check, the same damage brings other exceptions."""
    monkeypatch.setattr(Cursor, "require", lambda *_: None)
    with pytest.raises(Exception) as found:
        count_read("gguf", folder, 500)
    assert not isinstance(found.value, FewbitError)
