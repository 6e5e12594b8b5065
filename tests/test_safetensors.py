"""Reading and writing safetensors, against the safetensors library in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hostile.safetensors_files import safetensors as raw_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.checkpoint.safetensors_read import DTYPES, SafetensorsFile
from fewbit.checkpoint.safetensors_write import Part, plain_part, write_safetensors
from fewbit.errors import FaultError, MissingError, UnsupportedError
from fewbit.formats.registry import parse_format

NUMPY = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1"}
NUMPY |= {"U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?"}


def arrays() -> st.SearchStrategy[dict[str, NDArray[Any]]]:
    one = st.tuples(
        st.sampled_from(sorted(NUMPY.values())),
        st.lists(st.integers(1, 4), max_size=4),
        st.integers(0, 2**32 - 1),
    )
    return st.dictionaries(st.text(min_size=1, max_size=8), one.map(lambda args: _array(*args)))


def _array(dtype: str, shape: list[int], seed: int) -> NDArray[Any]:
    random = np.random.default_rng(seed)
    if dtype == "?":
        return random.integers(0, 2, shape).astype(np.bool_)
    raw = random.integers(0, 256, int(np.prod(shape)) * np.dtype(dtype).itemsize, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


@settings(max_examples=60, deadline=None)
@given(tensors=arrays(), metadata=st.dictionaries(st.text(), st.text(), max_size=3))
def test_what_the_library_writes_is_read(
    tensors: dict[str, NDArray[Any]],
    metadata: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("st") / "model.safetensors"
    tensors.pop("__metadata__", None)
    # Given no tensor and an empty map, the library (0.8) writes a header that is no JSON.
    safetensors.numpy.save_file(tensors, path, metadata or None)
    with SafetensorsFile(path) as file:
        assert dict(file.header.metadata) == metadata
        assert set(file.header.tensors) == set(tensors)
        for name, array in tensors.items():
            info = file.header.tensors[name].info
            assert NUMPY[info.format.name.upper()] == array.dtype.str[1:].replace("b1", "?")
            assert info.shape == array.shape
            assert file.read(name).codes.tobytes() == array.tobytes()


@settings(max_examples=60, deadline=None)
@given(tensors=arrays(), metadata=st.dictionaries(st.text(), st.text(), max_size=3))
def test_the_library_reads_what_we_write(
    tensors: dict[str, NDArray[Any]],
    metadata: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("st") / "model.safetensors"
    tensors.pop("__metadata__", None)
    names = {code: name for name, code in NUMPY.items()}
    parts = [
        Part(name, names[array.dtype.str[1:].replace("b1", "?")], array.shape)
        for name, array in tensors.items()
    ]
    write_safetensors(path, parts, reversed(list(tensors.items())), metadata)
    with safetensors.safe_open(path, "numpy") as file:
        assert (file.metadata() or {}) == metadata
        assert set(file.keys()) == set(tensors)
        for name, array in tensors.items():
            read = file.get_tensor(name)
            assert read.dtype == array.dtype
            assert read.shape == array.shape
            assert read.tobytes() == array.tobytes()


def test_bfloat16_is_a_view(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    info = TensorInfo("w", parse_format("bf16"), (2, 2), 8)
    bits = np.array([[0x3F80, 0x4000], [0xBF80, 0x0000]], np.uint16)
    write_safetensors(path, [plain_part(info)], [("w", bits)], {})
    with SafetensorsFile(path) as file:
        tensor = file.read("w")
        assert tensor.spec == parse_format("bf16")
        assert np.array_equal(tensor.codes.view(np.uint16), bits)
        assert not tensor.codes.flags.writeable


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_is_listed_with_its_width(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    width = DTYPES[dtype].block_bytes
    header = {"w": {"dtype": dtype, "shape": [3], "data_offsets": [0, 3 * width]}}
    path.write_bytes(raw_safetensors(header, bytes(3 * width)))
    with SafetensorsFile(path) as file:
        assert file.read("w").shape == (1, 3)
    with safetensors.safe_open(path, "numpy") as library:
        assert library.get_slice("w").get_shape() == [3]


def test_every_tensor_is_aligned_to_its_element(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    parts = [Part("a", "U8", (3,)), Part("b", "F16", (5,)), Part("c", "F64", (1,))]
    content = [(part.name, np.zeros(part.nbytes, np.uint8)) for part in parts]
    write_safetensors(path, parts, content, {"odd": "x"})
    with SafetensorsFile(path) as file:
        for part in parts:
            assert file.header.tensors[part.name].offset % DTYPES[part.dtype].block_bytes == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "no content was given for w"),
        ([("w", np.zeros(3, np.uint8))], "w brings 3 bytes where 4"),
        ([("w", np.zeros(4, np.uint8))] * 2, "where nothing more was announced"),
        ([("x", np.zeros(4, np.uint8))], "x brings"),
    ],
)
def test_other_content_than_announced_leaves_nothing(
    content: list[tuple[str, NDArray[Any]]], says: str, tmp_path: Path
) -> None:
    with pytest.raises(FaultError, match=says):
        write_safetensors(tmp_path / "w.safetensors", [Part("w", "U8", (4,))], content, {})
    assert not list(tmp_path.iterdir())


def test_a_block_format_cannot_be_stored_plainly() -> None:
    info = TensorInfo("w", parse_format("q4_0"), (1, 32), 18)
    with pytest.raises(UnsupportedError, match="w is in q4_0"):
        plain_part(info)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, [Part("up", "U8", (1,))], [("up", np.zeros(1, np.uint8))], {})
    with SafetensorsFile(path) as file, pytest.raises(MissingError, match="no tensor 'down'"):
        file.read("down")
