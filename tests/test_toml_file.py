"""Small TOML files: what cannot be read, and keys that are nearly right."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewbit.errors import BadFileError, MissingError
from fewbit.toml_file import LARGEST, read_toml, require_known_keys


def test_a_table_is_read(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("a = 1\n[[b]]\nc = 'd'\n")
    assert read_toml(path, "recipe") == {"a": 1, "b": [{"c": "d"}]}


NESTED = b"a = " + b"[" * 100_000
LONG = b"a = " + b"9" * 5000


@pytest.mark.parametrize(
    "content",
    [b"a = ", b"a = '\xff'", b"a = 1\na = 2", b"#" * (LARGEST + 1), NESTED, LONG],
)
def test_what_is_no_toml_is_named(tmp_path, content):
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(BadFileError, match=r"The recipe .*x\.toml"):
        read_toml(path, "recipe")


def test_of_what_has_no_end_no_more_is_read_than_may_be():
    with pytest.raises(BadFileError, match="at most 1 MiB"):
        read_toml(Path("/dev/zero"), "recipe")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MissingError, match=r"The gate .*none\.toml cannot be read"):
        read_toml(tmp_path / "none.toml", "gate")


def test_an_unknown_key_is_named_with_a_near_one():
    require_known_keys("The gate x", "a gate", ["level"], ["level", "slices"])
    with pytest.raises(BadFileError, match="the key 'levl', which a gate does not have; did"):
        require_known_keys("The gate x", "a gate", ["levl"], ["level", "slices"])
    with pytest.raises(BadFileError, match="it has level, slices"):
        require_known_keys("The gate x", "a gate", ["zzz"], ["level", "slices"])
