"""Every hostile file is refused with one sentence, at once, and without taking memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import Hostile, folders, gguf_files, safetensors_files, strangers

from fewbit.checkpoint import open_checkpoint
from fewbit.checkpoint.gguf_cursor import Cursor
from fewbit.errors import BadFileError, FewbitError

GROUPS = {
    "gguf": gguf_files.HOSTILE,
    "safetensors": safetensors_files.HOSTILE,
    "folder": folders.HOSTILE,
    "stranger": strangers.HOSTILE,
}
CASES = [
    pytest.param(case, id=f"{group}: {case.name}")
    for group, cases in GROUPS.items()
    for case in cases
]
# The largest of these files has 3 MB; its header is held as bytes and as text.
MEMORY = 10 << 20


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("traced")
def test_it_is_refused(case: Hostile, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    there = sorted(tmp_path.rglob("*"))
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    start = time.perf_counter()
    with pytest.raises(FewbitError, match=case.says) as refusal:
        open_checkpoint(path)
    assert time.perf_counter() - start < 1
    assert tracemalloc.get_traced_memory()[1] - before < MEMORY
    assert refusal.value.exit_code == 2
    message = str(refusal.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 600 + len(str(path))
    assert sorted(tmp_path.rglob("*")) == there


def test_a_file_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_files.sound())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # The superuser may read anything, so the system's answer is played.
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadFileError, match=r"Permission denied.*check its permissions"):
        open_checkpoint(path)


def test_the_sound_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_files.sound())
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.tensors) == ["matrix", "vector", "blocks"]
    folder = tmp_path / "plain"
    folder.mkdir()
    safetensors_files.folder_with(model__safetensors=safetensors_files.sound())(folder)
    with open_checkpoint(folder) as checkpoint:
        assert list(checkpoint.tensors) == ["matrix", "half", "scalar"]
    shards = tmp_path / "shards"
    shards.mkdir()
    with open_checkpoint(folders.sharded(shards)) as checkpoint:
        assert list(checkpoint.tensors) == ["a", "b"]


def test_an_unchecked_length_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with the bounds check gone, the cut files are no longer refused."""
    monkeypatch.setattr(Cursor, "require", lambda *_: None)
    case = next(
        case for case in gguf_files.HOSTILE if "2^64 - 1" in case.name and "text" in case.name
    )
    with pytest.raises((IndexError, OverflowError, AssertionError, pytest.fail.Exception)):
        test_it_is_refused(case, tmp_path)
