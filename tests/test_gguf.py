"""Reading and writing GGUF, against the gguf package in both directions."""

from __future__ import annotations

import gc
import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hostile.gguf_files import ARRAY, INT32, STRING, key, sound, string, u32, u64
from hostile.gguf_files import gguf as raw_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.checkpoint import open_checkpoint
from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_read import GgufCheckpoint
from fewbit.checkpoint.gguf_types import ArrayOf, MetadataType, ValueType
from fewbit.checkpoint.gguf_write import overlay, write_gguf
from fewbit.errors import FaultError, MissingError, UnsupportedError, UsageError
from fewbit.formats.registry import GGUF_TYPES, parse_format
from fewbit.formats.spec import BlockSpec, QuantTensor

RANDOM = np.random.default_rng(5)
INTEGERS = {
    ValueType.UINT8: (0, 2**8 - 1),
    ValueType.INT8: (-(2**7), 2**7 - 1),
    ValueType.UINT16: (0, 2**16 - 1),
    ValueType.INT16: (-(2**15), 2**15 - 1),
    ValueType.UINT32: (0, 2**32 - 1),
    ValueType.INT32: (-(2**31), 2**31 - 1),
    ValueType.UINT64: (0, 2**64 - 1),
    ValueType.INT64: (-(2**63), 2**63 - 1),
}


def block_tensor(form: BlockSpec, rows: int = 3, blocks: int = 2) -> QuantTensor:
    codes = RANDOM.integers(0, 256, (rows, blocks * form.block_bytes), dtype=np.uint8)
    return QuantTensor(form, (rows, blocks * form.block_size), codes)


def info_of(name: str, tensor: QuantTensor, shape: tuple[int, ...] | None = None) -> TensorInfo:
    return TensorInfo(name, tensor.spec, shape or tensor.shape, tensor.nbytes)


def write(path: Path, facts: GgufFacts, tensors: dict[str, QuantTensor]) -> None:
    write_gguf(path, facts, [info_of(*pair) for pair in tensors.items()], tensors.__getitem__)


def test_what_the_gguf_package_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, tuple[str, Any]] = {
        "a.u8": ("uint8", 255),
        "a.i8": ("int8", -128),
        "a.u16": ("uint16", 65535),
        "a.i16": ("int16", -32768),
        "a.u32": ("uint32", 2**32 - 1),
        "a.i32": ("int32", -(2**31)),
        "a.u64": ("uint64", 2**64 - 1),
        "a.i64": ("int64", -(2**63)),
        "a.f32": ("float32", 0.5),
        "a.f64": ("float64", 0.1),
        "a.bool": ("bool", True),
        "a.string": ("string", "naïve 😀"),
        "a.texts": ("array", ["a", "", "é"]),
        "a.ints": ("array", [1, -2, 3]),
        "a.floats": ("array", [0.5, -1.5]),
        "a.flags": ("array", [True, False]),
    }
    for name, (kind, value) in values.items():
        getattr(writer, f"add_{kind}")(name, value)
    matrix = RANDOM.standard_normal((4, 64)).astype(np.float32)
    cube = RANDOM.standard_normal((2, 3, 32)).astype(np.float16)
    writer.add_tensor("matrix", matrix)
    writer.add_tensor("cube", cube)
    writer.add_tensor("vector", matrix[0])
    quantized = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufCheckpoint(path) as checkpoint:
        for name, (_, value) in values.items():
            assert checkpoint.facts.metadata[name] == value, name
        assert checkpoint.facts.metadata["general.architecture"] == "llama"
        assert {n: i.shape for n, i in checkpoint.tensors.items()} == {
            "matrix": (4, 64),
            "cube": (2, 3, 32),
            "vector": (64,),
            "q8": (4, 64),
        }
        assert np.array_equal(checkpoint.read("matrix").codes.view(np.float32), matrix)
        assert np.array_equal(checkpoint.read("cube").codes.view(np.float16), cube.reshape(6, 32))
        assert checkpoint.read("vector").shape == (1, 64)
        assert np.array_equal(checkpoint.read("q8").codes, quantized)
        assert checkpoint.read("q8").spec == parse_format("q8_0")


def test_the_gguf_package_reads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    known = {int(kind) for kind in gguf.GGMLQuantizationType}
    # q8_1 is a type of activations, never stored; the package still has its size of old.
    known.remove(int(gguf.GGMLQuantizationType.Q8_1))
    tensors = {spec.name: block_tensor(spec) for i, spec in GGUF_TYPES.items() if i in known}
    assert len(tensors) > 25
    path_facts = tmp_path / "sound.gguf"
    path_facts.write_bytes(sound())
    with GgufCheckpoint(path_facts) as source:
        facts = source.facts
    write(path, facts, tensors)
    reader = gguf.GGUFReader(path)
    assert [tensor.name for tensor in reader.tensors] == list(tensors)
    for tensor in reader.tensors:
        ours = tensors[tensor.name]
        assert tensor.tensor_type == ours.spec.type_id  # type: ignore[union-attr]
        assert tuple(tensor.shape[::-1]) == ours.shape
        assert tensor.data.tobytes() == ours.codes.tobytes()
        assert tensor.data_offset % 32 == 0
    for name, value in facts.metadata.items():
        if name == "texts":  # its last one is not UTF-8, which the package cannot return
            continue
        assert reader.fields[name].contents() == pytest.approx(value), name
    del reader
    gc.collect()


def test_a_file_written_again_has_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    first.write_bytes(sound())
    with open_checkpoint(first) as checkpoint:
        assert isinstance(checkpoint.facts, GgufFacts)
        write_gguf(second, checkpoint.facts, list(checkpoint.tensors.values()), checkpoint.read)
    assert second.read_bytes() == sound()


def numbers_of(kind: ValueType) -> st.SearchStrategy[Any]:
    if kind in INTEGERS:
        return st.integers(*INTEGERS[kind])
    if kind is ValueType.BOOL:
        return st.booleans()
    if kind is ValueType.STRING:
        return st.text() | st.binary(max_size=9).filter(lambda raw: not _is_utf8(raw))
    return st.floats(width=32 if kind is ValueType.FLOAT32 else 64, allow_nan=False)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def typed_values() -> st.SearchStrategy[tuple[MetadataType, Any]]:
    scalars = st.sampled_from([kind for kind in ValueType if kind is not ValueType.ARRAY])
    return scalars.flatmap(
        lambda kind: (
            st.tuples(st.just(kind), numbers_of(kind))
            | st.tuples(st.just(ArrayOf(kind)), st.lists(numbers_of(kind), max_size=5))
        )
    )


@settings(max_examples=60, deadline=None)
@given(
    values=st.dictionaries(
        st.text(min_size=1, max_size=12).filter(lambda name: name != "general.alignment"),
        typed_values(),
        max_size=6,
    ),
    power=st.integers(3, 16),
)
def test_metadata_survives(
    values: dict[str, tuple[MetadataType, Any]],
    power: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    alignment = {"general.alignment": (ValueType.UINT32, 1 << power)}
    facts = overlay(GgufFacts({}), {**values, **alignment})
    tensors = {"w": block_tensor(GGUF_TYPES[2]), "v": block_tensor(GGUF_TYPES[0])}
    write(path, facts, tensors)
    with GgufCheckpoint(path) as checkpoint:
        assert dict(checkpoint.facts.metadata) == dict(facts.metadata)
        assert dict(checkpoint.facts.types) == dict(facts.types)
        assert checkpoint.alignment == 1 << power
        for name, tensor in tensors.items():
            assert np.array_equal(checkpoint.read(name).codes, tensor.codes)


def test_overlay_sets_and_removes() -> None:
    facts = overlay(GgufFacts({}), {"a": (ValueType.UINT8, 1), "b": (ValueType.BOOL, True)})
    changed = overlay(facts, {"a": None, "b": (ValueType.STRING, "x"), "c": (ValueType.INT8, 2)})
    assert changed.metadata == {"b": "x", "c": 2}
    assert changed.types == {"b": ValueType.STRING, "c": ValueType.INT8}
    assert facts.metadata == {"a": 1, "b": True}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ValueType.UINT8, 256),
        (ValueType.UINT32, "text"),
        (ValueType.STRING, 1),
        (ValueType.FLOAT32, 1e300),
        (ArrayOf(ValueType.INT8), [1, 200]),
        (ArrayOf(ValueType.STRING), 3),
        (None, 1),
    ],
)
def test_a_value_that_does_not_fit_is_refused(kind: Any, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'the key'"):
        write(tmp_path / "model.gguf", GgufFacts({"the key": value}, {"the key": kind}), {})
    assert not list(tmp_path.iterdir())


def test_a_format_without_a_gguf_type_is_refused(tmp_path: Path) -> None:
    info = TensorInfo("w", parse_format("int4-g32"), (1, 32), 18)
    with pytest.raises(UnsupportedError, match="w is in int4-g32, which is no GGUF type"):
        write_gguf(tmp_path / "model.gguf", GgufFacts({}), [info], {}.__getitem__)


def test_another_tensor_than_announced_leaves_nothing(tmp_path: Path) -> None:
    tensor = block_tensor(GGUF_TYPES[2])
    info = info_of("w", block_tensor(GGUF_TYPES[8]))
    with pytest.raises(FaultError, match="w brings"):
        write_gguf(tmp_path / "model.gguf", GgufFacts({}), [info], lambda _: tensor)
    assert not list(tmp_path.iterdir())


def test_a_missing_tensor_is_named_with_its_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(sound())
    with GgufCheckpoint(path) as checkpoint:
        for act in (checkpoint.read, checkpoint.release, checkpoint.digest):
            with pytest.raises(MissingError, match=r"no tensor 'matrixx'; near matches: matrix"):
                act("matrixx")


def test_views_outlive_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(sound())
    with GgufCheckpoint(path) as checkpoint:
        codes = checkpoint.read("matrix").codes
    assert codes.tobytes() == bytes(range(32))
    assert not codes.flags.writeable
    with pytest.raises(UsageError, match="was closed"):
        checkpoint.read("matrix")


def test_files_are_let_go(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(sound())
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(20):
        with GgufCheckpoint(path) as checkpoint:
            checkpoint.read("matrix")
    gc.collect()
    assert len(list(descriptors.iterdir())) <= before + 1


def test_a_large_vocabulary_is_read_fast(tmp_path: Path) -> None:
    count = 150_000
    tokens = b"".join(string(f"token{i}") for i in range(count))
    kinds = struct.pack(f"<{count}i", *range(count))
    path = tmp_path / "model.gguf"
    path.write_bytes(
        raw_gguf(
            (
                key("tokens", ARRAY, u32(STRING) + u64(count) + tokens),
                key("kinds", ARRAY, u32(INT32) + u64(count) + kinds),
            )
        )
    )
    start = time.perf_counter()
    with GgufCheckpoint(path) as checkpoint:
        assert checkpoint.facts.metadata["tokens"][-1] == f"token{count - 1}"
        assert checkpoint.facts.metadata["kinds"][-1] == count - 1
    # 0.06 s on a quiet core; the bound leaves room for a busy one.
    assert time.perf_counter() - start < 1
