"""The folder beside an output that holds what is solved already, so that a stopped job goes on.

`.<name>.work` has `key.json`, which says what the tensors in it were made from, and one safetensors
file for each cut of the walk: `<slot>.codes`, `<slot>.scales` and `<slot>.zeros`, and for each slot
a `Saved` record in the header. Files appear as a whole; one that cannot be read is solved again.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.atomic import write_bytes
from fewbit.checkpoint.safetensors_read import SafetensorsFile
from fewbit.checkpoint.safetensors_write import Part, write_safetensors
from fewbit.errors import BadFileError, FewbitError, OutputError
from fewbit.formats.registry import parse_format
from fewbit.formats.spec import QuantTensor
from fewbit.program import Slot
from fewbit.quantization.solving import Solved
from fewbit.records.base import Record, from_json, to_json

_CODES, _SCALES, _ZEROS = ".codes", ".scales", ".zeros"
_DTYPES = {"uint8": "U8", "float16": "F16", "float32": "F32"}
_KEY = "key.json"


class WorkKey(Record, frozen=True, kw_only=True):
    """Everything that decides the bits of what is solved."""

    version: str
    """Of fewbit."""
    source: str
    """Hash of the source's tensors."""
    plan: str
    """Hash of the recipe and of what becomes of each tensor."""
    calibration: str
    """Hash of the tokens or of the importance matrix; empty where there is none."""
    inputs: str
    kernels: str
    """The instruction set, since kernels of another round sums otherwise."""


class Saved(Record, frozen=True, kw_only=True):
    """What is kept of a solved tensor beside its arrays."""

    format: str
    shape: tuple[int, int]
    method: str
    relative_error: float
    remarks: tuple[str, ...]
    input_scale: float | None = None


class SolvedStore:
    """The solved tensors of a job, on disk as soon as a cut is done."""

    def __init__(self, folder: Path, key: WorkKey) -> None:
        """Open the folder of a job, which becomes empty unless it has the same key.

        Raises:
            OutputError: it cannot be written.
        """
        self.folder = folder
        self.note = _differs(folder, key)
        """Why an earlier job's work is not used, in a sentence; empty where it is, or was none."""
        try:
            if self.note:
                shutil.rmtree(folder)
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{folder} cannot be written ({error.strerror}); choose another output."
            ) from error
        write_bytes(folder / _KEY, to_json(key))
        self.found = dict(_read_all(folder))
        """What earlier runs solved."""

    def save(self, number: int, solved: Mapping[Slot, Solved]) -> None:
        """Keep the tensors of a cut, by its number."""
        arrays = {
            name: array for slot, item in solved.items() for name, array in _arrays(slot, item)
        }
        parts = [Part(n, _DTYPES[str(a.dtype)], a.shape) for n, a in arrays.items()]
        records = {slot: to_json(_saved(item)).decode() for slot, item in solved.items()}
        write_safetensors(self.folder / f"{number:05d}.safetensors", parts, arrays.items(), records)

    def is_empty(self) -> bool:
        """Whether nothing is kept that a later run could use."""
        return all(path.name == _KEY for path in self.folder.iterdir())

    def remove(self) -> None:
        """Delete the folder: the output is there."""
        shutil.rmtree(self.folder, ignore_errors=True)


def work_folder(out: Path) -> Path:
    """Return where the work on an output lies: beside it."""
    return out.with_name(f".{out.name}.work")


def hashed(*texts: str) -> str:
    """Return the SHA-256 of texts, each ended by a zero byte, hexadecimal."""
    return hashlib.sha256(b"".join(text.encode() + b"\0" for text in texts)).hexdigest()


def _differs(folder: Path, key: WorkKey) -> str:
    if not (folder / _KEY).exists():
        return ""
    try:
        earlier = from_json(WorkKey, (folder / _KEY).read_bytes(), name=str(folder / _KEY))
    except (OSError, BadFileError):
        return f"The work in {folder} cannot be read, so it begins anew."
    other = [name for name in WorkKey.__struct_fields__ if _get(earlier, name) != _get(key, name)]
    if not other:
        return ""
    return f"The work in {folder} was done with another {' and '.join(other)}, so it begins anew."


def _get(key: WorkKey, name: str) -> str:
    return str(getattr(key, name))


def _read_all(folder: Path) -> Iterator[tuple[Slot, Solved]]:
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with SafetensorsFile(path) as file:
                yield from [(slot, _read(file, slot)) for slot in file.header.metadata]
        except FewbitError:
            path.unlink()


def _read(file: SafetensorsFile, slot: Slot) -> Solved:
    saved = from_json(Saved, file.header.metadata[slot].encode(), name=f"{file.path}: {slot}")
    parts = {
        end: _array(file, slot + end)
        for end in (_CODES, _SCALES, _ZEROS)
        if slot + end in file.header.tensors
    }
    tensor = QuantTensor(
        parse_format(saved.format),
        saved.shape,
        parts[_CODES],
        parts.get(_SCALES),
        parts.get(_ZEROS),
    )
    return Solved(tensor, saved.relative_error, saved.remarks, saved.method, saved.input_scale)


def _array(file: SafetensorsFile, name: str) -> NDArray[Any]:
    """Return an entry as its own array: the file is closed and may go away."""
    stored = file.read(name)
    kind = {"u8": np.uint8, "f16": np.float16, "f32": np.float32}[stored.spec.name]
    shape = file.header.tensors[name].info.shape
    found: NDArray[Any] = np.array(stored.codes).view(kind).reshape(shape)
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
    )
