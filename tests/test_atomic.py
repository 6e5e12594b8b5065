"""The old file or the whole new one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fewbit.atomic import creating_folder, replacing, replacing_folder, require_apart, write_bytes
from fewbit.errors import OutputError


def test_new_content_takes_the_place_of_old(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_bytes(path, b"old")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_keeps_the_old_content_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_bytes(path, b"old")
    with pytest.raises(KeyError), replacing(path) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_an_output_error(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with pytest.raises(OutputError, match="No space left"), replacing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="absent"):
        write_bytes(tmp_path / "absent" / "model", b"")


def test_the_mode_follows_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "model"
    plain = tmp_path / "plain"
    write_bytes(path, b"")
    plain.write_bytes(b"")
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_folder_appears_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with creating_folder(path) as partial:
        (partial / "file").write_bytes(b"x")
        assert not path.exists()
    assert (path / "file").read_bytes() == b"x"
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "plain").mkdir()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_error_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyError), creating_folder(tmp_path / "out") as partial:
        (partial / "file").write_bytes(b"x")
        raise KeyError
    with pytest.raises(OutputError, match="No space left"), creating_folder(tmp_path / "out"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(OutputError, match="exists already"), creating_folder(path):
            raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    for old in (tmp_path / "folder", tmp_path / "nothing"):
        if old.name == "folder":
            old.mkdir()
            (old / "a").write_text("old")
        with replacing_folder(old) as partial:
            (partial / "b").write_text("new")
            assert not (old / "b").exists()
        assert [path.name for path in old.iterdir()] == ["b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "nothing"]


def test_what_was_there_comes_back_when_the_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "folder"
    old.mkdir()
    (old / "a").write_text("old")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if target == old and not self.name.endswith(".old"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OutputError, match="folder was not written"), replacing_folder(old):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (old / "a").read_text() == "old"


@pytest.mark.parametrize("out", ["model", "model/out", ".", "link/out"])
def test_an_output_and_its_source_lie_apart(out: str, tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(OutputError, match="one in the other"):
        require_apart(tmp_path / out, source)


def test_a_loop_of_links_is_left_to_the_writer(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    require_apart(loop / "out", tmp_path / "model")
    with pytest.raises(OutputError, match="symbolic links"), creating_folder(loop / "out"):
        pass
