"""GGUF files that lie, byte by byte: line 1 of the cases, and what is next to it."""

from __future__ import annotations

import struct

from hostile import Hostile, file_of

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10
F32, Q4_0 = 0, 2
ALIGNMENT = "general.alignment"


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + u32(kind) + value


def tensor(name: str, sizes: tuple[int, ...], kind: int = F32, offset: int = 0) -> bytes:
    return string(name) + u32(len(sizes)) + u64(*sizes) + u32(kind) + u64(offset)


def gguf(
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: bytes = b"",
    alignment: int = 32,
    version: int = 3,
) -> bytes:
    """Return a file whose counts are right; padding before the data as the alignment asks."""
    head = b"GGUF" + u32(version) + u64(len(tensors), len(keys)) + b"".join(keys + tensors)
    return head + bytes(-len(head) % alignment) + data


def sound() -> bytes:
    """Return a file that must be read: every value type, every kind of array, three tensors."""
    scalars = (
        key("u8", 0, b"\xff"),
        key("i8", 1, b"\xff"),
        key("u16", 2, b"\xff\xff"),
        key("i16", 3, b"\xff\xff"),
        key("u32", UINT32, u32(7)),
        key("i32", INT32, struct.pack("<i", -7)),
        key("f32", FLOAT32, struct.pack("<f", 0.5)),
        key("bool", BOOL, b"\x01"),
        key("text", STRING, string("été")),
        key("u64", UINT64, u64(1 << 63)),
        key("i64", 11, struct.pack("<q", -1)),
        key("f64", 12, struct.pack("<d", 0.1)),
    )
    arrays = (
        key("texts", ARRAY, u32(STRING) + u64(3) + string("a") + string("") + string(b"\xff")),
        key("numbers", ARRAY, u32(INT32) + u64(2) + struct.pack("<2i", 1, -1)),
        key("flags", ARRAY, u32(BOOL) + u64(2) + b"\x00\x01"),
        key(ALIGNMENT, UINT32, u32(32)),
    )
    tensors = (
        tensor("matrix", (4, 2), F32, 0),
        tensor("vector", (3,), F32, 32),
        tensor("blocks", (32, 1), Q4_0, 64),
    )
    data = bytes(range(32)) + bytes(range(12)).ljust(32, b"\0") + bytes(range(18)).ljust(32, b"\0")
    return gguf(scalars + arrays, tensors, data)


def _text_claims(length: int) -> bytes:
    return gguf((key("a", STRING, u64(length)),)).ljust(160, b"\0")


def _nested(depth: int) -> bytes:
    return key("deep", ARRAY, (u32(ARRAY) + u64(1)) * depth + u32(UINT32) + u64(0))


def _architecture(name: str, kind: int, value: bytes) -> bytes:
    return gguf((key("general.architecture", STRING, string("llama")), key(name, kind, value)))


def _one_tensor(data: bytes = bytes(64), **fields: object) -> bytes:
    return gguf((), (tensor("w", **{"sizes": (4, 4), **fields}),), data)  # type: ignore[arg-type]


_HUGE = (1 << 62, 4)
_DATA = bytes(64)

_CONTENT: dict[str, tuple[bytes, str]] = {
    "sizes that multiply past 2^64": (_one_tensor(sizes=(1 << 40, 1 << 40)), "'w'.*end at"),
    "sizes that sum past 2^64": (
        gguf((), tuple(tensor(f"w{i}", _HUGE) for i in range(4)), _DATA),
        "'w0'.*end at",
    ),
    "an offset whose padding wraps": (_one_tensor(offset=(1 << 64) - 32), "'w'.*end at"),
    "an offset beyond the end": (_one_tensor(offset=1 << 20), r"'w' at byte \d+.*end at"),
    "an offset off the grid": (_one_tensor(offset=4), r"'w' at byte \d+ has offset 4"),
    "a size beyond the end": (_one_tensor(sizes=(4, 5)), "'w'.*80 bytes"),
    "a dimension of 0": (_one_tensor(sizes=(4, 0)), r"'w' at byte \d+ has the dimensions"),
    "no dimensions": (_one_tensor(sizes=()), r"'w' at byte \d+ has 0 dimensions"),
    "nine dimensions": (_one_tensor(sizes=(1,) * 9), r"'w' at byte \d+ has 9 dimensions"),
    "2^32 - 1 dimensions": (
        gguf((), (string("w") + u32(0xFFFFFFFF) + bytes(64),)),
        r"'w' at byte \d+ has 4294967295 dimensions",
    ),
    "an unknown tensor type": (_one_tensor(kind=99), r"'w' at byte \d+ has the unknown type 99"),
    "a negative tensor type": (_one_tensor(kind=0xFFFFFFFF), "unknown type 4294967295"),
    "a removed tensor type": (_one_tensor(kind=4), "unknown type 4"),
    "rows that cut a block": (_one_tensor(sizes=(33, 1), kind=Q4_0), "rows of 33"),
    "tensors that overlap": (
        gguf((), (tensor("a", (16,)), tensor("b", (8,), offset=32)), bytes(64)),
        r"'b' at byte \d+ overlaps 'a'",
    ),
    "one tensor name twice": (
        gguf((), (tensor("w", (8,)), tensor("w", (8,), offset=32)), bytes(64)),
        "'w'.*second time",
    ),
    "an empty tensor name": (gguf((), (tensor("", (8,)),), _DATA), "name at byte 24 is empty"),
    "a tensor name that is not UTF-8": (
        gguf((), (string(b"\xff\xfe") + bytes(24),), _DATA),
        "name at byte 24 is not UTF-8",
    ),
    "an empty key": (gguf((key("", UINT32, u32(1)),)), "key 0 at byte 24 is empty"),
    "one key twice": (gguf((key("a", UINT32, u32(1)),) * 2), "'a' at byte 41 appears a second"),
    "a key of 70,000 bytes": (gguf((key("k" * 70_000, UINT32, u32(1)),)), "70000 bytes, more than"),
    "a key that is not UTF-8": (gguf((key(b"\xff", UINT32, u32(1)),)), "key 0.*not UTF-8"),
    "160 bytes that claim a text of 1 GiB": (_text_claims(1 << 30), "claims 1073741824 bytes"),
    "160 bytes that claim a text of 2^64 - 1": (_text_claims((1 << 64) - 1), "claims 1844674407"),
    "an array of 2^60 texts": (
        gguf((key("a", ARRAY, u32(STRING) + u64(1 << 60)),)),
        "length of the value of 'a' at byte",
    ),
    "an array of 4 million empty claims": (
        gguf((key("a", ARRAY, u32(STRING) + u64(1 << 22)),)),
        "only 0 bytes follow|bytes follow",
    ),
    "an array of 2^61 numbers of 8 bytes": (
        gguf((key("a", ARRAY, u32(UINT64) + u64(1 << 61)),)),
        "length of the value of 'a' at byte",
    ),
    "texts of which the second is too long": (
        gguf((key("a", ARRAY, u32(STRING) + u64(2) + string("x") + u64(1 << 40)),)),
        "string 1 of the value of 'a' at byte",
    ),
    "arrays nested 1,000 deep": (gguf((_nested(1000),)), "'deep' at byte.*array of arrays"),
    "an unknown value type": (gguf((key("a", 13, u32(1)),)), "'a' at byte.*unknown type 13"),
    "a negative value type": (gguf((key("a", 0xFFFFFFFF, u32(1)),)), "unknown type 4294967295"),
    "an unknown element type": (gguf((key("a", ARRAY, u32(77) + u64(1)),)), "unknown type 77"),
    "a boolean of 2": (gguf((key("a", BOOL, b"\x02"),)), "boolean 2"),
    "an array with a boolean of 2": (
        gguf((key("a", ARRAY, u32(BOOL) + u64(2) + b"\x00\x02"),)),
        "'a' at byte.*boolean",
    ),
    "alignment 2^30": (
        gguf((key(ALIGNMENT, UINT32, u32(1 << 30)),)),
        "alignment' at byte.*1073741824",
    ),
    "alignment 0": (gguf((key(ALIGNMENT, UINT32, u32(0)),)), "alignment' at byte.*is 0"),
    "alignment 24": (gguf((key(ALIGNMENT, UINT32, u32(24)),)), "alignment' at byte.*is 24"),
    "alignment as u64": (gguf((key(ALIGNMENT, UINT64, u64(32)),)), "has the type UINT64"),
    "alignment as text": (gguf((key(ALIGNMENT, STRING, string("32")),)), "has the type STRING"),
    "alignment as array": (
        gguf((key(ALIGNMENT, ARRAY, u32(UINT32) + u64(1) + u32(32)),)),
        "has the type ARRAY",
    ),
    "head_count 0": (
        _architecture("llama.attention.head_count", UINT32, u32(0)),
        "'llama.attention.head_count' at byte.*'0'",
    ),
    "head_count -1": (
        _architecture("llama.attention.head_count", INT32, struct.pack("<i", -1)),
        "head_count' at byte.*'-1'",
    ),
    "head_count as text": (
        _architecture("llama.attention.head_count", STRING, string("nine")),
        "head_count' at byte.*'nine'",
    ),
    "block_count 2^31": (
        _architecture("llama.block_count", UINT32, u32(1 << 31)),
        "'llama.block_count' at byte.*'2147483648'",
    ),
    "an architecture that is a number": (
        gguf((key("general.architecture", UINT32, u32(1)),)),
        "'general.architecture' at byte",
    ),
    "2^63 tensors": (b"GGUF" + u32(3) + u64(1 << 63, 0), "tensor count at byte 8"),
    "2^63 keys": (b"GGUF" + u32(3) + u64(0, 1 << 63), "key count at byte 16"),
    "more tensors than fit": (b"GGUF" + u32(3) + u64(1000, 0) + bytes(90), "only .* bytes follow"),
    "version 0": (gguf(version=0), "version 0"),
    "version 1": (gguf(version=1), "version 1"),
    "version 99": (gguf(version=99), "version 99"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "one part of three": (
        gguf((key("split.count", 2, b"\x03\x00"),)),
        "one of 3 parts",
    ),
}

HOSTILE = tuple(
    Hostile(name, file_of("model.gguf", content), says)
    for name, (content, says) in _CONTENT.items()
)
