"""Files that are no checkpoint at all: line 3 of the cases."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path

from hostile import Hostile, file_of
from hostile.safetensors_files import sound

_POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
size 98362432
"""


def _zip(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return content.getvalue()


def _pipe(folder: Path) -> Path:
    path = folder / "model.gguf"
    os.mkfifo(path)
    return path


def _dangling(folder: Path) -> Path:
    path = folder / "model.gguf"
    path.symlink_to(folder / "absent")
    return path


def _loop(folder: Path) -> Path:
    path = folder / "model.gguf"
    path.symlink_to(path)
    return path


HOSTILE = (
    Hostile("an empty file", file_of("model.gguf", b""), "is empty"),
    Hostile(
        "a web page",
        file_of("model.gguf", b"\n<!DOCTYPE html><html><body>404</body></html>"),
        "this is a web page|is a web page",
    ),
    Hostile("a web page in capitals", file_of("m.gguf", b"\xef\xbb\xbf<HTML>"), "is a web page"),
    Hostile("a Git LFS pointer", file_of("model.gguf", _POINTER), "file itself was not downloaded"),
    Hostile("a pickle", file_of("model.bin", pickle.dumps([1])), "pickle.*convert it"),
    Hostile("a pickle called .gguf", file_of("m.gguf", pickle.dumps([1])), "pickle.*convert"),
    Hostile("a torch archive", file_of("model.pt", _zip("m/data.pkl", "m/data/0")), "pickle"),
    Hostile("an old checkpoint", file_of("model.ckpt", b"anything"), "pickle"),
    Hostile("a zip archive", file_of("model.zip", _zip("model.gguf")), "zip archive"),
    Hostile("one safetensors file", file_of("m.safetensors", sound()), "give the folder"),
    Hostile("noise", file_of("model.gguf", b"\x01\x02\x03\x04 noise"), "01 02 03 04 20"),
    Hostile("three bytes", file_of("model.gguf", b"GGU"), "47 47 55"),
    Hostile("the old ggml format", file_of("m.gguf", b"lmgg" + bytes(32)), "6c 6d 67 67"),
    Hostile("a pipe", _pipe, "neither a file nor a folder"),
    Hostile("nothing", lambda folder: folder / "absent.gguf", "does not exist"),
    Hostile("a link to nothing", _dangling, "does not exist"),
    Hostile("a link to itself", _loop, "cannot be read"),
    Hostile(
        "a path through a file", lambda f: file_of("m", b"x")(f) / "x", "cannot be read|not exist"
    ),
    Hostile("a zero byte in the path", lambda folder: folder / "a\0b", "no usable path"),
    Hostile("a name too long", lambda folder: folder / ("x" * 5000), "cannot be read"),
)
