"""GGUF files in parts: any part opens all, and parts that lie are named."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_read import GgufCheckpoint
from fewbit.checkpoint.gguf_split import open_gguf, written_as
from fewbit.checkpoint.gguf_types import ValueType
from fewbit.checkpoint.gguf_write import overlay, part_paths, write_gguf, write_gguf_parts
from fewbit.checkpoint.open import open_checkpoint
from fewbit.checkpoint.parted import MAX_FILES
from fewbit.cli.app import run
from fewbit.errors import BadFileError, MissingError, UsageError
from fewbit.formats.registry import encode, parse_format

FACTS = overlay(
    GgufFacts({}),
    {
        "general.architecture": (ValueType.STRING, "llama"),
        "general.alignment": (ValueType.UINT32, 64),
    },
)
TENSORS = {f"t{i}": encode(np.full((2, 32), i, np.float32), parse_format("f32")) for i in range(5)}
INFOS = [TensorInfo(name, t.spec, t.shape, t.nbytes) for name, t in TENSORS.items()]


def parts_in(folder: Path, name: str = "m", largest: int = 512) -> list[Path]:
    folder.mkdir(exist_ok=True)
    out = folder / f"{name}.gguf"
    write_gguf_parts(out, FACTS, INFOS, TENSORS.__getitem__, largest)
    return part_paths(out, INFOS, largest)


def test_any_part_opens_all(tmp_path):
    paths = parts_in(tmp_path)
    assert [p.name for p in paths] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert written_as(tmp_path / "m.gguf") == paths[0]
    for path in paths:
        with open_checkpoint(path) as found:
            assert found.path == paths[0]
            assert list(found.tensors) == list(TENSORS)
            assert dict(found.facts.metadata) == dict(FACTS.metadata)
            for name, tensor in TENSORS.items():
                np.testing.assert_array_equal(found.read(name).codes, tensor.codes)
                assert len(found.digest(name)) == 64
                found.release(name)
            assert len(found.stamps()) == 3
            with pytest.raises(MissingError, match=r"t9.*near"):
                found.read("t9")


def test_parts_that_were_written_before_are_not_what_was_written_now(tmp_path):
    few, many = parts_in(tmp_path), parts_in(tmp_path, largest=128)
    assert few[0] < many[0]
    for new, old in ((many, few), (few, many)):
        os.utime(old[0], (1, 1))
        os.utime(new[0], (2, 2))
        assert written_as(tmp_path / "m.gguf") == new[0]


def test_what_fits_is_one_plain_file(tmp_path):
    assert parts_in(tmp_path, largest=1 << 20) == [tmp_path / "m.gguf"]
    assert written_as(tmp_path / "m.gguf") == tmp_path / "m.gguf"


def test_a_tensor_larger_than_a_part_is_a_part(tmp_path):
    assert len(parts_in(tmp_path, largest=1)) == len(TENSORS)


def test_too_many_parts_are_refused(tmp_path):
    many = [TensorInfo(f"t{i}", INFOS[0].format, (1, 1), 4) for i in range(MAX_FILES + 1)]
    with pytest.raises(UsageError, match="--split-size"):
        write_gguf_parts(tmp_path / "m.gguf", FACTS, many, TENSORS.__getitem__, 1)


def test_a_missing_part_is_named(tmp_path):
    paths = parts_in(tmp_path)
    paths[1].unlink()
    with pytest.raises(MissingError, match=r"lacks 1 of its 3 parts \(m-00002-of-00003.gguf\)"):
        open_gguf(paths[2])


def test_a_part_under_another_name_is_refused(tmp_path):
    paths = parts_in(tmp_path)
    moved = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(BadFileError, match="not named like one"):
        open_gguf(moved)


def test_exchanged_parts_are_refused(tmp_path):
    paths = parts_in(tmp_path)
    paths[1].rename(tmp_path / "x")
    paths[2].rename(paths[1])
    (tmp_path / "x").rename(paths[2])
    with pytest.raises(BadFileError, match="says that it is part 3 of 3, and its name"):
        open_gguf(paths[0])


def test_a_part_of_another_file_is_refused(tmp_path):
    paths, others = parts_in(tmp_path / "a"), parts_in(tmp_path / "b", largest=256)
    paths[2].unlink()
    others[2].rename(paths[2])
    with pytest.raises(BadFileError, match="says that it is part 3 of 5"):
        open_gguf(paths[0])


def test_a_plain_file_among_the_parts_is_refused(tmp_path):
    paths = parts_in(tmp_path)
    write_gguf(paths[1], FACTS, INFOS[:1], TENSORS.__getitem__)
    with pytest.raises(BadFileError, match=r"split.count is .*None"):
        open_gguf(paths[0])


def test_a_tensor_in_two_parts_is_refused(tmp_path):
    paths = parts_in(tmp_path)
    with GgufCheckpoint(paths[1]) as part:
        facts = GgufFacts(dict(part.facts.metadata), dict(part.facts.types))
    write_gguf(paths[1], facts, INFOS[:2], TENSORS.__getitem__)
    with pytest.raises(BadFileError, match=r"has the tensor 't0', and so has m-00001"):
        open_gguf(paths[0])


def test_a_part_that_lost_a_tensor_is_refused(tmp_path):
    paths = parts_in(tmp_path)
    with GgufCheckpoint(paths[1]) as part:
        facts = GgufFacts(dict(part.facts.metadata), dict(part.facts.types))
    write_gguf(paths[1], facts, [INFOS[2]], TENSORS.__getitem__)
    with pytest.raises(BadFileError, match=r"hold 4 tensors, but say that they hold 5"):
        open_gguf(paths[0])


def test_a_cut_part_is_refused(tmp_path):
    paths = parts_in(tmp_path)
    raw = paths[2].read_bytes()
    for size in (0, 3, 40, len(raw) - 1):
        paths[2].write_bytes(raw[:size])
        with pytest.raises(BadFileError, match="m-00003-of-00003"):
            open_gguf(paths[0])


@pytest.mark.parametrize(
    ("key", "value"),
    [("split.count", 0), ("split.count", 65535), ("split.no", 65535), ("split.no", 1)],
)
def test_numbers_that_lie_are_refused(tmp_path, key, value):
    paths = parts_in(tmp_path)
    raw = paths[0].read_bytes()
    at = raw.index(key.encode()) + len(key) + 4
    paths[0].write_bytes(raw[:at] + struct.pack("<H", value) + raw[at + 2 :])
    with pytest.raises((BadFileError, MissingError)):
        open_gguf(paths[0])
    with pytest.raises((BadFileError, MissingError)):
        open_gguf(paths[1])


def test_random_damage_never_escapes_the_error_tree(tmp_path):
    paths = parts_in(tmp_path)
    sound = [path.read_bytes() for path in paths]
    rng = np.random.default_rng(5)
    for _ in range(150):
        which = int(rng.integers(3))
        raw = bytearray(sound[which])
        for at in rng.integers(0, len(raw), 3):
            raw[at] = int(rng.integers(256))
        paths[which].write_bytes(bytes(raw))
        try:
            open_gguf(paths[0]).close()
        except Exception as error:
            assert type(error).__module__ == "fewbit.errors", error
        paths[which].write_bytes(sound[which])


def test_the_command_names_the_cause(tmp_path, capsys):
    paths = parts_in(tmp_path)
    paths[1].unlink()
    assert run(["inspect", str(paths[0])]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "lacks 1 of its 3 parts" in error
