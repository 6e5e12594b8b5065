"""The tensors that a job has solved, kept in its folder, so that it can be stopped and go on.

`solved.key` says what they were made from; there is one safetensors file for each cut of the walk:
`<slot>.codes`, `<slot>.scales` and `<slot>.zeros`, for each slot a `Saved` record, and the hash of
all that. Files appear as a whole; what cannot be read, or has another hash, is solved again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.safetensors_read import SafetensorsFile
from fewbit.checkpoint.safetensors_write import Part, write_safetensors
from fewbit.errors import BadFileError, FewbitError
from fewbit.formats.registry import parse_format
from fewbit.formats.spec import QuantTensor
from fewbit.program import Slot
from fewbit.quantization.job import Job
from fewbit.quantization.solving import Solved
from fewbit.records.base import Record, from_json, to_json

_ENDS = _CODES, _SCALES, _ZEROS = ".codes", ".scales", ".zeros"
_DTYPES = {"uint8": "U8", "float16": "F16", "float32": "F32"}
_KEY = "solved.key"
_TRANSFORMS = "transforms.key"
_SEAL = "sha256"
"""Beside the slots' records: slots have dots in their names."""


class WorkKey(Record, frozen=True, kw_only=True):
    """What decides the bits of what is solved, beside what the job was asked for."""

    plan: str
    """Hash of what becomes of each tensor."""
    calibration: str
    """Hash of the tokens; empty where there are none."""
    inputs: str
    tuning: str = ""
    """Settings of the tuning and the hash of its text; empty where nothing is tuned."""


class TransformKey(Record, frozen=True, kw_only=True):
    """What transforms did to the source before anything was solved."""

    transforms: str
    """Hash of the factors of every touched slot."""


class Saved(Record, frozen=True, kw_only=True):
    """What is kept of a solved tensor beside its arrays."""

    format: str
    shape: tuple[int, int]
    method: str
    relative_error: float
    remarks: tuple[str, ...]
    input_scale: float | None = None
    damping: float | None = None
    tokens: int | None = None


class SolvedStore:
    """The solved tensors of a job, on disk as soon as a cut is done, and read from there.

    So they take no memory: their arrays are views of mapped files.
    """

    def __init__(self, job: Job, key: WorkKey) -> None:
        """Open the tensors that earlier runs of a job solved.

        Raises:
            UsageError: they were solved from something else.
            OutputError: the job's folder cannot be written.
        """
        job.require_same(_KEY, key)
        self._job = job
        self.folder = job.folder
        self.stop = job.stop
        self.found: dict[Slot, Solved] = {}
        """What is solved."""
        self._files: dict[Slot, SafetensorsFile] = {}
        for path in sorted(self.folder.glob("[0-9]*.safetensors")):
            try:
                self._open(path)
            except (FewbitError, KeyError):  # of another element type, where it is the latter
                path.unlink()  # it is solved again

    def require_same_transforms(self, fingerprints: Sequence[str]) -> None:
        """Check that earlier runs solved with the same factors; raises UsageError."""
        self._job.require_same(_TRANSFORMS, TransformKey(transforms=hashed(*fingerprints)))

    def save(self, number: int, solved: Mapping[Slot, Solved]) -> dict[Slot, Solved]:
        """Keep the tensors of a cut, by its number, and return them as views of what is kept."""
        arrays = {
            name: array for slot, item in solved.items() for name, array in _arrays(slot, item)
        }
        parts = [Part(n, _DTYPES[str(a.dtype)], a.shape) for n, a in arrays.items()]
        records = {slot: to_json(_saved(item)).decode() for slot, item in solved.items()}
        records[_SEAL] = _seal(records, _content(arrays))
        path = self.folder / f"{number:05d}.safetensors"
        write_safetensors(path, parts, arrays.items(), records)
        self._open(path)
        return {slot: self.found[slot] for slot in solved}

    def release(self, slot: Slot) -> None:
        """Let the system drop the pages of a tensor; they come back when looked at."""
        file = self._files.get(slot)
        for end in _ENDS:
            if file is not None and slot + end in file.header.tensors:
                file.release(slot + end)

    def _open(self, path: Path) -> None:
        file = SafetensorsFile(path)
        records = dict(file.header.metadata)
        if records.pop(_SEAL, "") != _seal(records, file.digest(*sorted(file.header.tensors))):
            raise BadFileError(f"{path} is not what was kept there; it is made again.")
        found = {slot: _read(file, slot) for slot in records}
        self.found |= found
        self._files |= dict.fromkeys(found, file)


def hashed(*texts: str) -> str:
    """Return the SHA-256 of texts, each ended by a zero byte, hexadecimal."""
    return hashlib.sha256(b"".join(text.encode() + b"\0" for text in texts)).hexdigest()


def _content(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the hash of arrays one after the other, by name."""
    running = hashlib.sha256()
    for name in sorted(arrays):
        running.update(np.ascontiguousarray(arrays[name]).data)
    return running.hexdigest()


def _seal(records: Mapping[Slot, str], content: str) -> str:
    """Return the hash of what a file says and has, given that of its arrays."""
    return hashed(content, *(text for pair in sorted(records.items()) for text in pair))


def _read(file: SafetensorsFile, slot: Slot) -> Solved:
    saved = from_json(Saved, file.header.metadata[slot].encode(), name=f"{file.path}: {slot}")
    parts = {end: _array(file, slot + end) for end in _ENDS if slot + end in file.header.tensors}
    tensor = QuantTensor(
        parse_format(saved.format),
        saved.shape,
        parts[_CODES],
        parts.get(_SCALES),
        parts.get(_ZEROS),
    )
    return Solved(
        tensor,
        saved.relative_error,
        saved.remarks,
        saved.method,
        saved.input_scale,
        saved.damping,
        saved.tokens,
    )


def _array(file: SafetensorsFile, name: str) -> NDArray[Any]:
    """Return an entry as a view of the file, which stays mapped while views of it are alive."""
    stored = file.read(name)
    kind = {"u8": np.uint8, "f16": np.float16, "f32": np.float32}[stored.spec.name]
    shape = file.header.tensors[name].info.shape
    found: NDArray[Any] = stored.codes.view(kind).reshape(shape)
    return found


def _arrays(slot: Slot, solved: Solved) -> Iterator[tuple[str, NDArray[Any]]]:
    tensor = solved.tensor
    for end, array in ((_CODES, tensor.codes), (_SCALES, tensor.scales), (_ZEROS, tensor.zeros)):
        if array is not None:
            yield slot + end, array


def _saved(solved: Solved) -> Saved:
    return Saved(
        format=solved.tensor.spec.name,
        shape=solved.tensor.shape,
        method=solved.method,
        relative_error=solved.relative_error,
        remarks=solved.remarks,
        input_scale=solved.input_scale,
        damping=solved.damping,
        tokens=solved.tokens,
    )
