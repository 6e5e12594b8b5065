"""Folders of models that lie or lack something: lines 2, 3 and 6 of the cases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile import Hostile
from hostile.safetensors_files import entry, folder_with, safetensors

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def sharded(folder: Path, weight_map: Any = None) -> Path:
    """Write a folder of two shards, sound unless the weight map is another."""
    sound = {"a": FIRST, "b": SECOND}
    index = {"metadata": {}, "weight_map": sound if weight_map is None else weight_map}
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / INDEX).write_text(json.dumps(index))
    (folder / FIRST).write_bytes(safetensors({"a": entry(0, 4)}, bytes(4)))
    (folder / SECOND).write_bytes(safetensors({"b": entry(0, 4)}, bytes(4)))
    return folder


def _index(weight_map: Any) -> Callable[[Path], Path]:
    return lambda folder: sharded(folder, weight_map)


def _without(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        sharded(folder)
        (folder / name).unlink()
        return folder

    return write


def _with(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        sharded(folder)
        (folder / name).write_bytes(content)
        return folder

    return write


def _gguf_inside(folder: Path) -> Path:
    (folder / "model.gguf").write_bytes(b"GGUF")
    return folder


def _folder_as_index(folder: Path) -> Path:
    sharded(folder)
    (folder / SECOND).unlink()
    (folder / SECOND).mkdir()
    return folder


HOSTILE = (
    Hostile("an index that climbs", _index({"a": "../x.safetensors"}), "'a' into '../x.safet"),
    Hostile("an index with a folder", _index({"a": "x/y.safetensors"}), "no plain name"),
    Hostile("an absolute path", _index({"a": "/etc/x.safetensors"}), "no plain name"),
    Hostile("a Windows path", _index({"a": "..\\x.safetensors"}), "no plain name"),
    Hostile("a drive", _index({"a": "C:x.safetensors"}), "no plain name"),
    Hostile("a name with a zero byte", _index({"a": "x\0.safetensors"}), "no plain name"),
    Hostile("a pickle as shard", _index({"a": "x.bin"}), "no plain name"),
    Hostile("a number as shard", _index({"a": 1}), "no plain name"),
    Hostile("no weight_map", _index([]), "no weight_map"),
    Hostile("an empty weight_map", _index({}), "no weight_map"),
    Hostile("an index that is a list", _with(INDEX, b"[]"), "holds a list"),
    Hostile("an index that is cut", _with(INDEX, b'{"weight_map": {'), "not sound JSON"),
    Hostile(
        "one tensor twice in the index",
        _with(INDEX, f'{{"weight_map": {{"a": "{FIRST}", "a": "{SECOND}"}}}}'.encode()),
        "'a' appears twice",
    ),
    Hostile("a shard missing", _without(SECOND), f"lacks 1 of its 2 shards.*{SECOND}"),
    Hostile("a shard that is a folder", _folder_as_index, "lacks 1 of its 2 shards"),
    Hostile("a tensor missing", _index({"a": FIRST, "b": SECOND, "c": SECOND}), "no tensor 'c'"),
    Hostile("a tensor too many", _index({"a": FIRST, "z": SECOND}), "does not list .* 'b'"),
    Hostile("a tensor elsewhere", _index({"a": SECOND, "b": SECOND}), "has no tensor 'a'"),
    Hostile("a shard cut", _with(SECOND, b"\x10"), "header length at byte 0 is cut"),
    Hostile("a configuration that is cut", _with("config.json", b"{"), "config.json is not sound"),
    Hostile("a configuration that is a list", _with("config.json", b"[]"), "holds a list"),
    Hostile("an empty configuration", _with("config.json", b""), "config.json is not sound JSON"),
    Hostile("a key twice", _with("config.json", b'{"a":1,"a":2}'), "'a' appears twice"),
    Hostile(
        "half a character", _with("config.json", b'{"a":"\\udead"}'), "an escape is half of a pair"
    ),
    Hostile("a deep configuration", _with("config.json", b'{"a":' * 9999), "nests too deeply"),
    Hostile("a template in bytes", _with("chat_template.jinja", b"\xff"), "is not UTF-8"),
    Hostile("a template of 2 MB", _with("chat_template.jinja", b"x" * (1 << 21)), "more than"),
    Hostile(
        "a template that is a number",
        _with("tokenizer_config.json", b'{"chat_template": 1}'),
        "chat_template that is no text",
    ),
    Hostile(
        "pickles only", folder_with(pytorch_model__bin=b"\x80\x02"), "pytorch_model.bin.*pickle"
    ),
    Hostile("no weights", folder_with(), "neither model.safetensors nor"),
    Hostile("an empty folder", lambda folder: folder, "a folder without config.json"),
    Hostile("a folder around a GGUF file", _gguf_inside, "holds model.gguf; give that file"),
)
