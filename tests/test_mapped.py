"""A mapped file: views, hashes, pages let go."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path

import pytest

from fewbit.checkpoint import mapped
from fewbit.checkpoint.mapped import MappedFile, quoted
from fewbit.errors import BadFileError, UsageError

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def test_released_pages_come_back(path: Path) -> None:
    with MappedFile(path) as file:
        view = file.array(0, len(CONTENT))
        for start, length in ((0, len(CONTENT)), (1, mmap.PAGESIZE), (5, 10), (0, 0)):
            file.release(start, length)
        assert view.tobytes() == CONTENT


def test_a_hash_goes_over_its_ranges(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hashlib.sha256(CONTENT[3:9000] + CONTENT[1:2]).hexdigest()
    with MappedFile(path) as file:
        assert file.sha256((3, 8997), (1, 1)) == expected
        monkeypatch.setattr(mapped, "_HASH_STEP", 1000)
        assert file.sha256((3, 8997), (1, 1)) == expected


def test_closing_twice_is_closing_once(path: Path) -> None:
    file = MappedFile(path)
    file.close()
    file.close()
    with pytest.raises(UsageError, match="open the checkpoint again"):
        file.array(0, 1)


def test_an_absent_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="No such file"):
        MappedFile(tmp_path / "absent")


def test_names_are_shown_harmlessly() -> None:
    assert quoted("a\x1b[31m\n") == "'a\\x1b[31m\\n'"
    assert quoted("x" * 65) == "'" + "x" * 61 + "...'"


@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_a_file_that_changes_its_size_is_not_looked_at(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 16))
    with MappedFile(path) as file:
        os.truncate(path, size)
        with pytest.raises(BadFileError, match=f"has {size} bytes, and had 65536"):
            file.array(0, 16)
        with pytest.raises(BadFileError, match="begin anew"):
            file.sha256((0, 1 << 16))
