"""Packed weights kept in a file, so that a later start maps them instead of packing.

The file: 8 bytes of magic, the header's length as a little-endian u64, the header (JSON, a
`PackedHeader`), zeros up to 2 MiB, then the matrices, each at a multiple of 64 bytes. A reader
computes from the model itself where every matrix must lie and takes a file whose header says just
that, so no length or offset of the file is ever used; checksums guard the bytes. Nothing depends on
the instruction set.

The matrices begin on a huge page and the file is written in whole ones, so that a file system with
large folios gives huge pages to the mapping; where it does not, the bytes are copied to memory that
has them, because pages of 4 KiB make a step of one row 1.45 times as long.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import msgspec

from fewbit import __version__
from fewbit._native import PackedFile, PackedMatrix, layout_version
from fewbit.atomic import replacing
from fewbit.errors import BadFileError, OutputError
from fewbit.program import Slot
from fewbit.records.base import from_json
from fewbit.records.loading import FileStamp, PackedHeader, PackedPlace, PackedPlan
from fewbit.runtime.pack import PackedForm, size_of

MAGIC = b"FEWBITP1"
DATA = 1 << 21
"""Where the matrices begin; the header fits before it."""
_HEADER_ROOM = DATA - 16
_ALIGNMENT = 64
_WRITTEN_AT_ONCE = 1 << 24

Matrices: TypeAlias = Mapping[Slot, PackedMatrix]

Forms: TypeAlias = Mapping[Slot, tuple[PackedForm, tuple[int, int]]]
"""The packed form and the shape of each matrix."""


def packed_path(model: Path) -> Path:
    """Return where a model's packed weights are kept: beside its file, or inside its folder."""
    if model.is_dir():
        return model / "model.fewbit-packed"
    return model.with_name(model.name + ".fewbit-packed")


def plan_packed(files: tuple[FileStamp, ...], forms: Forms) -> PackedPlan:
    """Return what a file of these packed matrices of these files must be."""
    places, offset = [], DATA
    for slot, (form, (rows, columns)) in forms.items():
        size = size_of(form, (rows, columns))
        places.append(
            PackedPlace(
                slot=slot,
                source=form.source,
                bits=form.bits,
                group=form.group,
                asymmetric=form.asymmetric,
                rows=rows,
                columns=columns,
                offset=offset,
                size=size,
            )
        )
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    return PackedPlan(layout=layout_version, fewbit=__version__, files=files, places=tuple(places))


def read_packed(path: Path, plan: PackedPlan, threads: int) -> Matrices:
    """Return the matrices of a file, as views of it or of one copy on huge pages.

    Args:
        path: the file.
        plan: what it must be.
        threads: how many threads check and copy.

    Raises:
        BadFileError: it cannot be read, is damaged or cut, or belongs to another model, to other
            files, or to another version.
    """
    file = _mapped(path)
    header = _read_header(file, path)
    _require_same(path, header.plan, plan)
    end = _end(plan)
    if file.size != end:
        raise _damaged(path, f"has {file.size} bytes instead of {end}")
    if not file.populate():
        raise _damaged(path, "cannot be read to its end")
    sums = file.checksums([(place.offset, place.size) for place in plan.places], threads)
    for place, met, expected in zip(plan.places, sums, header.checksums, strict=True):
        if f"{met:016x}" != expected:
            raise _damaged(path, f"has other bytes for {place.slot} than were written")
    if not _on_huge_pages(file):
        file = file.copy(threads)
    return {place.slot: _matrix(file, place) for place in plan.places}


def write_packed(path: Path, plan: PackedPlan, matrices: Matrices) -> None:
    """Keep packed matrices in a file, which appears whole or not at all.

    Raises:
        OutputError: it cannot be written; what was there is untouched.
    """
    sums = tuple(f"{matrices[place.slot].checksum():016x}" for place in plan.places)
    head = msgspec.json.encode(PackedHeader(plan=plan, checksums=sums))
    if len(head) > _HEADER_ROOM:
        raise OutputError(
            f"{path} was not written: {len(plan.places)} matrices are described by {len(head)} "
            f"bytes, and there is room for {_HEADER_ROOM}."
        )
    with replacing(path) as file:
        start = MAGIC + len(head).to_bytes(8, "little") + head
        for whole in _whole_pages([start.ljust(DATA, b"\0")], _pieces(plan, matrices)):
            file.write(whole)


def _pieces(plan: PackedPlan, matrices: Matrices) -> Iterator[bytes]:
    for place in plan.places:
        matrix = matrices[place.slot]
        assert matrix.nbytes == place.size
        for at in range(0, place.size, _WRITTEN_AT_ONCE):
            yield matrix.bytes(at, min(_WRITTEN_AT_ONCE, place.size - at))
        yield bytes(-place.size % _ALIGNMENT)


def _whole_pages(*sources: Iterator[bytes] | list[bytes]) -> Iterator[bytes]:
    """Join pieces to blocks of whole huge pages; the last may be shorter."""
    held = bytearray()
    for source in sources:
        for piece in source:
            held += piece
            whole = len(held) // DATA * DATA
            if whole:
                yield bytes(held[:whole])
                del held[:whole]
    yield bytes(held)


def _mapped(path: Path) -> PackedFile:
    if not path.is_file():  # opening a pipe would wait for who writes to it
        raise _damaged(path, "is no regular file")
    try:
        return PackedFile(str(path))
    except OSError as error:
        raise BadFileError(f"{path} cannot be read ({error.strerror})") from error


def _read_header(file: PackedFile, path: Path) -> PackedHeader:
    if file.size < DATA:
        raise _damaged(path, f"has {file.size} bytes, fewer than any such file")
    start = file.read(0, 16)
    if start[:8] != MAGIC:
        raise _damaged(path, "does not begin as such a file")
    length = int.from_bytes(start[8:], "little")
    if length > _HEADER_ROOM:
        raise _damaged(path, f"claims a header of {length} bytes, more than the {_HEADER_ROOM}")
    try:
        header = from_json(PackedHeader, file.read(16, length), name=str(path))
    except (BadFileError, RecursionError) as error:
        raise _damaged(path, "has a header that cannot be read") from error
    if len(header.checksums) != len(header.plan.places):
        raise _damaged(path, "has not one checksum for each matrix")
    return header


def _require_same(path: Path, met: PackedPlan, wanted: PackedPlan) -> None:
    """Refuse a sound file of other weights, and say what differs."""
    if met == wanted:
        return
    if (met.layout, met.fewbit) != (wanted.layout, wanted.fewbit):
        reason = (
            f"was written by fewbit {met.fewbit[:40]!a} (layout {met.layout}), this is "
            f"{wanted.fewbit} (layout {wanted.layout})"
        )
    elif met.files != wanted.files:
        reason = "belongs to another version of the model's files"
    else:
        reason = "holds other matrices than the model has"
    raise BadFileError(f"{path} {reason}")


def _damaged(path: Path, problem: str) -> BadFileError:
    return BadFileError(f"{path} is damaged: it {problem}")


def _end(plan: PackedPlan) -> int:
    if not plan.places:
        return DATA
    last = plan.places[-1]
    return last.offset + -(-last.size // _ALIGNMENT) * _ALIGNMENT


def _matrix(file: PackedFile, place: PackedPlace) -> PackedMatrix:
    return file.matrix(
        place.offset,
        place.source,
        place.rows,
        place.columns,
        place.bits,
        place.group,
        place.asymmetric,
    )


def _on_huge_pages(file: PackedFile) -> bool:
    """Whether most of a mapping has them, or the system does not say (Linux alone does)."""
    mapped = _huge_bytes(file.address)
    return mapped is None or mapped >= 0.9 * (file.size - DATA)


def _huge_bytes(address: int) -> int | None:
    """Return `FilePmdMapped` of the mapping at an address, by /proc/self/smaps."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/self/smaps").read_text().splitlines()
        starts = [i for i, line in enumerate(lines) if line[:1] in "0123456789abcdef"]
        for first, last in pairwise([*starts, len(lines)]):
            if int(lines[first].partition("-")[0], 16) != address:
                continue
            fields = dict(line.split(":", 1) for line in lines[first + 1 : last])
            return int(fields["FilePmdMapped"].split()[0]) << 10
    return None
