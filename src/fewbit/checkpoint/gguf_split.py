"""GGUF files in numbered parts, `name-00001-of-00003.gguf`, as one checkpoint.

The first part has the metadata; each has `split.no` (from 0), `split.count` and
`split.tensors.count`, the number of tensors in all parts (llama.cpp, tools/gguf-split).
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_read import GgufCheckpoint
from fewbit.checkpoint.gguf_types import ValueType
from fewbit.checkpoint.mapped import ClosedByWith, quoted
from fewbit.checkpoint.missing import missing_tensor
from fewbit.checkpoint.parted import MAX_FILES
from fewbit.errors import BadFileError, MissingError
from fewbit.formats.spec import QuantTensor
from fewbit.records.loading import FileStamp

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
_KEYS = (NUMBER, COUNT, TENSORS)
_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")
_SHOWN = 3


def open_gguf(path: Path) -> GgufCheckpoint | SplitGgufCheckpoint:
    """Open a GGUF file; any part of a split one opens all of them.

    Raises:
        BadFileError, UnsupportedError: as `parse_gguf`; parts that do not belong together.
        MissingError: a part is not there.
    """
    part = GgufCheckpoint(path)
    try:
        count = _number(part, COUNT, 1, MAX_FILES) if COUNT in part.facts.metadata else 1
        return part if count == 1 else SplitGgufCheckpoint(part, count)
    except BaseException:
        part.close()
        raise


def part_path(out: Path, number: int, count: int) -> Path:
    """Return the path of a part, counted from 0, of a file that is to be called `out`."""
    return out.with_name(f"{out.stem}-{number + 1:05d}-of-{count:05d}.gguf")


def parts_of(name: str, names: Sequence[str]) -> list[str]:
    """Return those of some names that are parts of the file that one is a part of, or that one."""
    match = _NAME.fullmatch(name)
    if match is None:
        return [name]
    parts = [_NAME.fullmatch(other) for other in names]
    own = match["stem"], match["count"]
    return sorted(part[0] for part in parts if part and (part["stem"], part["count"]) == own)


def written_as(out: Path) -> Path:
    """Return the file that was just written as `out`: itself, or the first of its parts.

    Where it was written before, in another number of parts, those are older.
    """
    parts = list(out.parent.glob(f"{glob.escape(out.stem)}-00001-of-*.gguf"))
    if out.exists() or not parts:
        return out
    return max(parts, key=lambda part: part.stat().st_mtime_ns)


class SplitGgufCheckpoint(ClosedByWith):
    """All parts of a split file; its metadata is the first part's, without the keys of splitting.

    Raises:
        as `open_gguf`.
    """

    def __init__(self, given: GgufCheckpoint, count: int) -> None:
        paths = _paths(given.path, count)
        self._parts: list[GgufCheckpoint] = []
        try:
            for number, path in enumerate(paths):
                self._parts.append(given if path == given.path else GgufCheckpoint(path))
                _check_part(self._parts[-1], number, count)
            self._owners = _owners(self._parts)
            _check_total(self._parts, len(self._owners))
        except BaseException:
            self.close()
            raise
        self._facts = _without_split(self._parts[0].facts)

    @property
    def path(self) -> Path:
        """The first part."""
        return self._parts[0].path

    @property
    def facts(self) -> GgufFacts:
        """The metadata of the whole."""
        return self._facts

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, part after part."""
        infos = {name: part.tensors[name] for name, part in self._owners.items()}
        return MappingProxyType(infos)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return nothing: all that is in the files is a tensor or metadata."""
        return ()

    def read(self, name: str) -> QuantTensor:
        """Return a tensor as read-only views of its file; raises MissingError without one."""
        return self._owner(name).read(name)

    def release(self, name: str) -> None:
        """Let the system drop the tensor's pages."""
        self._owner(name).release(name)

    def digest(self, name: str) -> str:
        """Return the SHA-256 of the tensor's bytes, hexadecimal."""
        return self._owner(name).digest(name)

    def stamps(self) -> tuple[FileStamp, ...]:
        """Return those of all parts."""
        return tuple(stamp for part in self._parts for stamp in part.stamps())

    def close(self) -> None:
        """Let go of the files; views stay valid."""
        for part in self._parts:
            part.close()

    def _owner(self, name: str) -> GgufCheckpoint:
        try:
            return self._owners[name]
        except KeyError:
            raise missing_tensor(self.path, name, self._owners) from None


def _paths(path: Path, count: int) -> list[Path]:
    """Return the paths of all parts, going by the name of one."""
    match = _NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise BadFileError(
            f"{path} says that it is one of {count} parts, but is not named like one "
            f"(NAME-00001-of-{count:05d}.gguf); give the parts the names they were published with."
        )
    names = [f"{match['stem']}-{number + 1:05d}-of-{count:05d}.gguf" for number in range(count)]
    absent = [name for name in names if not (path.parent / name).is_file()]
    if absent:
        shown = ", ".join(absent[:_SHOWN]) + (", ..." if len(absent) > _SHOWN else "")
        raise MissingError(f"{path} lacks {len(absent)} of its {count} parts ({shown}); get them.")
    return [path.with_name(name) for name in names]


def _check_part(part: GgufCheckpoint, number: int, count: int) -> None:
    found = (_number(part, COUNT, 1, MAX_FILES), _number(part, NUMBER, 0, MAX_FILES))
    if found != (count, number):
        raise BadFileError(
            f"{part.path} says that it is part {found[1] + 1} of {found[0]}, and its name that it "
            f"is part {number + 1} of {count}; it belongs to another file, get the right one."
        )


def _number(part: GgufCheckpoint, key: str, low: int, high: int) -> int:
    value: Any = part.facts.metadata.get(key)
    if type(value) is not int or not low <= value <= high:
        raise BadFileError(
            f"{part.path}: {key} is {quoted(str(value))}, no whole number from {low} to {high}; "
            "the file is damaged or no part of a split file."
        )
    return value


def _owners(parts: Sequence[GgufCheckpoint]) -> dict[str, GgufCheckpoint]:
    owners: dict[str, GgufCheckpoint] = {}
    for part in parts:
        for name in part.tensors:
            if name in owners:
                raise BadFileError(
                    f"{part.path} has the tensor {quoted(name)}, and so has "
                    f"{owners[name].path.name}; parts of different files are mixed."
                )
            owners[name] = part
    return owners


def _check_total(parts: Sequence[GgufCheckpoint], found: int) -> None:
    stated = {_number(part, TENSORS, 0, 1 << 31) for part in parts}
    if stated != {found}:
        raise BadFileError(
            f"{parts[0].path} and its parts hold {found} tensors, but say that they hold "
            f"{' and '.join(map(str, sorted(stated)))}; parts of different files are mixed, or one "
            "is damaged."
        )


def _without_split(facts: GgufFacts) -> GgufFacts:
    metadata = {key: value for key, value in facts.metadata.items() if key not in _KEYS}
    types = {key: kind for key, kind in facts.types.items() if key not in _KEYS}
    return GgufFacts(MappingProxyType(metadata), MappingProxyType(types))


def split_keys(number: int, count: int, tensors: int) -> dict[str, tuple[ValueType, int]]:
    """Return what a part says of itself, as llama.cpp types it."""
    return {
        NUMBER: (ValueType.UINT16, number),
        COUNT: (ValueType.UINT16, count),
        TENSORS: (ValueType.INT32, tensors),
    }
