"""What is fetched of a hub's repository, with the hub played."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from fewbit.checkpoint.download import resolve
from fewbit.checkpoint.hub import choose_files
from fewbit.errors import DownloadError, FewbitError

SAFE = {
    "model.safetensors": 10,
    "config.json": 1,
    "tokenizer.json": 1,
    "pytorch_model.bin": 10,
    "modeling_x.py": 1,
    "onnx/model.safetensors": 10,
    "README.md": 1,
}


def test_weights_and_data_but_no_code_and_no_pickle() -> None:
    chosen = choose_files(SAFE, "org/name", [])
    assert chosen == ["model.safetensors", "config.json", "tokenizer.json"]


def test_weights_that_lie_there_twice_are_fetched_once() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    twice = [*shards, "model.safetensors.index.json", "consolidated.safetensors", "config.json"]
    found = choose_files(dict.fromkeys(twice, 1), "org/name", [])
    assert found == [*shards, "config.json", "model.safetensors.index.json"]
    others = choose_files({"weights-a.safetensors": 1, "config.json": 1}, "org/name", [])
    assert others == ["weights-a.safetensors", "config.json"]


def test_one_gguf_file() -> None:
    assert choose_files({"a.gguf": 1, "config.json": 1}, "org/name", []) == ["a.gguf"]
    assert choose_files({"a.gguf": 1, "b.gguf": 1}, "org/name", ["b.gguf"]) == ["b.gguf"]


def test_a_split_gguf_file_is_fetched_whole() -> None:
    parts = [f"a-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    others = ["a-00001-of-00002.gguf", "b-00001-of-00003.gguf", "c.gguf"]
    assert choose_files(dict.fromkeys([*parts, "config.json"], 1), "org/name", []) == parts
    for part in parts:
        assert choose_files(dict.fromkeys([*others, *parts], 1), "org/name", [part]) == parts
    with pytest.raises(FewbitError, match="has 4 GGUF files"):
        choose_files(dict.fromkeys([*others, *parts], 1), "org/name", [])


@pytest.mark.parametrize(
    ("files", "wanted", "says"),
    [
        (["a.gguf", "b.gguf"], [], "has 2 GGUF files; ask for one, such as org/name/a.gguf"),
        (["a.gguf"], ["b.gguf"], "has no file b.gguf; it has a.gguf"),
        (["README.md"], ["b.gguf"], "it has no GGUF file"),
        (["pytorch_model.bin"], [], "pytorch_model.bin is a pickle"),
        (["README.md"], [], "neither safetensors nor GGUF"),
    ],
)
def test_what_cannot_be_chosen(files: list[str], wanted: list[str], says: str) -> None:
    with pytest.raises(FewbitError, match=says):
        choose_files(dict.fromkeys(files, 1), "org/name", wanted)


class PlayedHub:
    """Answers as the hub's client does, and writes the files asked for."""

    def __init__(self, files: dict[str, int]) -> None:
        self.files = files
        self.calls: list[Any] = []

    def model_info(self, repository: str, *, files_metadata: bool) -> SimpleNamespace:
        assert files_metadata
        self.calls.append(repository)
        entries = [SimpleNamespace(rfilename=n, size=s) for n, s in self.files.items()]
        return SimpleNamespace(sha="abc", siblings=entries)

    def snapshot_download(
        self, repository: str, *, revision: str, local_dir: Path, allow_patterns: list[str]
    ) -> None:
        self.calls.append((repository, revision))
        for name in allow_patterns:
            (local_dir / name).write_bytes(b"x")


def play(monkeypatch: pytest.MonkeyPatch, hub: Any) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)


def test_a_folder_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = PlayedHub(SAFE)
    play(monkeypatch, hub)
    path = resolve("org/name", tmp_path)
    assert path == tmp_path / "models" / "org--name"
    assert (path / "model.safetensors").is_file()
    assert not (path / "modeling_x.py").exists()
    assert resolve("org/name", tmp_path) == path
    assert hub.calls == ["org/name", ("org/name", "abc")]


def test_files_of_one_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, PlayedHub({"a.gguf": 1, "b.gguf": 1}))
    for name in ("a.gguf", "b.gguf", "a.gguf"):
        path = resolve(f"org/name/{name}", tmp_path)
        assert path == tmp_path / "models" / "org--name" / name


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, PlayedHub({"model.safetensors": 1 << 60}))
    with pytest.raises(DownloadError, match="are needed"):
        resolve("org/name", tmp_path)


def test_any_failure_of_the_client_is_a_download_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def model_info(self, *_: object, **__: object) -> None:
            raise RuntimeError("401 Client Error\nmany lines")

    play(monkeypatch, Broken())
    with pytest.raises(
        DownloadError, match=r"org/name could not be fetched .*\(401 Client Error\)"
    ):
        resolve("org/name", tmp_path)
    with pytest.raises(DownloadError):
        resolve("org/name", tmp_path)
