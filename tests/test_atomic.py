"""The old file or the whole new one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fewbit.atomic import (
    arriving_together,
    claimed,
    creating_folder,
    is_free,
    replacing,
    replacing_folder,
    require_apart,
    reserve,
    write_bytes,
)
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


def test_a_pipe_is_written_into_and_stays_one(tmp_path: Path) -> None:
    """As `--json >(jq .)` and, for a root that would replace it, `--json /dev/null`."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as reader:
        write_bytes(path, b"new")
        assert reader.communicate()[0] == b"new"
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_behind_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path = tmp_path / "real" / "model"
    path.write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to(path)
    write_bytes(link, b"new")
    assert (path.read_bytes(), link.readlink()) == (b"new", path)


def test_a_file_has_its_room_before_it_is_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    reserve(path, 1 << 20)
    assert path.read_bytes() == bytes(1 << 20)
    assert path.stat().st_blocks * 512 >= 1 << 20

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match="No space left on device"):
        reserve(path, 1 << 20)
    assert not path.exists()


@pytest.mark.parametrize("size", [0, (1 << 20) + 1])
def test_a_file_has_its_room_where_the_system_cannot_allocate_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    reserve(tmp_path / "allocated", size)
    monkeypatch.delattr(os, "posix_fallocate")
    reserve(tmp_path / "written", size)
    for name in ("allocated", "written"):
        assert (tmp_path / name).read_bytes() == bytes(size)


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


def test_a_full_disk_names_the_folder_and_not_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OutputError) as met, creating_folder(tmp_path / "out") as partial:
        monkeypatch.setattr(os, "fsync", full)
        write_bytes(partial / "weights", b"1")
    said = f"{tmp_path / 'out'} was not written (No space left on device); what was there is untou"
    assert str(met.value).startswith(said)
    monkeypatch.undo()
    with pytest.raises(OutputError, match="other"), creating_folder(tmp_path / "out"):
        write_bytes(tmp_path / "nowhere" / "other", b"1")


def test_a_folder_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(OutputError, match="exists already"), creating_folder(path):
            raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_whose_place_cannot_be_taken_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    assert is_free(real)
    with pytest.raises(OutputError, match="choose the folder behind it"):
        is_free(link)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == real)
    with pytest.raises(OutputError, match="choose a folder inside it"):
        is_free(real)
    link.unlink()
    link.symlink_to(tmp_path / "nothing")
    assert is_free(link)


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


def test_files_arrive_in_order_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = tmp_path / "model.json", tmp_path / "model"
    arrived: list[str] = []
    replace = Path.replace

    def seen(self: Path, target: Path) -> Path:
        arrived.append(target.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", seen)
    with pytest.raises(KeyError), arriving_together(first, last) as folder:
        (folder / first.name).write_text("1")
        raise KeyError
    assert not list(tmp_path.iterdir())
    with arriving_together(first, last) as folder:
        for path in (last, first):
            (folder / path.name).write_text(path.name)
    assert arrived == ["model.json", "model"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.json"]


def test_an_output_has_one_writer_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with claimed(out):
        with pytest.raises(OutputError, match=r"Another run is writing .*out"), claimed(out):
            raise AssertionError
        with claimed(tmp_path / "other"):
            pass
    with claimed(out):
        pass
    assert not list(tmp_path.iterdir())


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    code = "import sys, os, pathlib; from fewbit.atomic import claimed\n"
    code += "with claimed(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    out = tmp_path / "out"
    assert subprocess.run([sys.executable, "-c", code, out], check=False).returncode == -9
    assert [path.name for path in tmp_path.iterdir()] == [".out.lock"]
    with claimed(out):
        pass
    assert not list(tmp_path.iterdir())


def test_what_a_killed_writer_left_goes_and_nothing_else_does(tmp_path: Path) -> None:
    out = tmp_path / "out"
    others = [".out.manifest", ".out.b.abcdefgh.partial", "out.abcdefgh.partial", ".out.work"]
    for name in (*others, ".out.abc_1234.partial"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".out.abcdefgh.partial").mkdir()
    with claimed(out):
        found = sorted(path.name for path in tmp_path.iterdir())
    assert found == sorted([*others, ".out.lock"])


def test_a_folder_that_had_left_its_place_comes_back(tmp_path: Path) -> None:
    out, moved = tmp_path / "out", tmp_path / ".out.abcdefgh.partial.old"
    moved.mkdir()
    (moved / "a").write_text("old")
    with claimed(out):
        assert (out / "a").read_text() == "old"
    moved.mkdir()
    with claimed(out):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_output_without_a_name_is_refused() -> None:
    for out in (Path(), Path("..")):
        with pytest.raises(OutputError, match="has no name of its own"), claimed(out):
            raise AssertionError


def test_a_file_system_without_modes_takes_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FAT and exFAT answer where a mode is not one of theirs."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    write_bytes(tmp_path / "model", b"new")
    with creating_folder(tmp_path / "out") as partial:
        (partial / "file").write_bytes(b"x")
    assert (tmp_path / "model").read_bytes() == b"new"
    assert (tmp_path / "out" / "file").read_bytes() == b"x"


def test_a_folder_that_cannot_be_listed_is_an_output_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    refused = pytest.raises(OutputError, match=r"cannot be removed \(Permission denied\)")
    with refused, claimed(tmp_path / "out"):
        raise AssertionError
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())  # the lock is let go of
