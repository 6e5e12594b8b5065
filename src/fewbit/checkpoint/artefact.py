"""Artefacts: Hugging Face folders whose safetensors file also holds tensors in fewbit's formats.

A tensor in f32, f16 or bf16 is stored under its own name. One in any other format is stored as
`<name>.codes` (U8), and for formats with scales of their own `<name>.scales` (F16 or F32),
`<name>.zeros` (U8) and, where columns lie in an order, `<name>.order` (I32); the header's
`__metadata__` maps its name to {"format": ..., "shape": [...]}, with "activations": "bf16" (or
another of `Activations`) where the layer's input is to be rounded otherwise than to int8 per 32
inputs, and with the "input_scale" that "int8-static" needs. `manifest.json` is written last, and
the folder appears as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

import msgspec
import numpy as np
from numpy.typing import NDArray

from fewbit.atomic import creating_folder, write_bytes
from fewbit.checkpoint.checkpoint import HuggingFaceFacts, TensorInfo
from fewbit.checkpoint.detect import CONFIG
from fewbit.checkpoint.huggingface import WEIGHTS, config_stamp, read_facts
from fewbit.checkpoint.mapped import ClosedByWith, quoted
from fewbit.checkpoint.missing import missing_tensor
from fewbit.checkpoint.safetensors_read import SafetensorsFile
from fewbit.checkpoint.safetensors_write import Part, plain_part, write_safetensors
from fewbit.checkpoint.strict_json import parse_object
from fewbit.errors import BadFileError, FaultError, MissingError, UnsupportedError, UsageError
from fewbit.formats.registry import FLOATS, encoded_bytes, parse_format
from fewbit.formats.spec import BlockSpec, NumberFormat, QuantTensor, ScaleType, is_ordered
from fewbit.records.artefact import ArtefactConfig
from fewbit.records.kernels import Activations
from fewbit.records.loading import FileStamp

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
README = "README.md"
"""A folder's model card, where hubs look for it."""
PLAIN = ArtefactConfig(format_version=FORMAT_VERSION)
"""Of an artefact whose tensors say everything."""

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

CODES, SCALES, ZEROS, ORDER = ".codes", ".scales", ".zeros", ".order"


def encoded_info(name: str, form: NumberFormat, shape: tuple[int, ...]) -> TensorInfo:
    """Return the description of a tensor in a format.

    Raises:
        UsageError: the columns do not divide into the format's groups or blocks.
    """
    nbytes = encoded_bytes(form, TensorInfo(name, form, shape, 0).matrix_shape)
    return TensorInfo(name, form, shape, nbytes)


def write_artefact(  # noqa: PLR0913
    folder: Path,
    *,
    config: Mapping[str, Any],
    sidecars: Mapping[str, bytes],
    tensors: Sequence[TensorInfo],
    read: Callable[[str], QuantTensor],
    manifest: Callable[[], bytes],
    card: Callable[[], bytes | None] = lambda: None,
    stated: ArtefactConfig = PLAIN,
) -> None:
    """Write an artefact; the folder appears when everything is in it, or not at all.

    Args:
        folder: must not exist, or be empty.
        config: the model's Hugging Face configuration.
        sidecars: further files by name, such as `tokenizer.json`.
        tensors: every tensor under its Hugging Face name.
        read: gives each tensor when its turn comes; only one is held at a time.
        manifest: gives the content of `manifest.json`, asked for after the last tensor.
        card: gives that of `README.md`, or None for none; asked for just before.
        stated: what marks an artefact, which is added to its configuration.

    Raises:
        OutputError: the folder is not empty or cannot be written.
        FaultError: `read` gives another format or size than announced.
    """
    marked = {**config, "quantization_config": _without_defaults(stated)}
    with creating_folder(folder) as partial:
        write_bytes(partial / CONFIG, json.dumps(marked, indent=2).encode() + b"\n")
        for name, content in sidecars.items():
            write_bytes(partial / name, content)
        _write_weights(partial / WEIGHTS, tensors, read)
        written = card()
        if written is not None:
            write_bytes(partial / README, written)
        write_bytes(partial / MANIFEST, manifest())


def _without_defaults(stated: ArtefactConfig) -> dict[str, Any]:
    """Return the fields that say something, so that older versions can read what they know."""
    fields: dict[str, Any] = msgspec.to_builtins(stated)
    named = ("quant_method", "format_version")
    defaults = msgspec.to_builtins(PLAIN)
    return {k: v for k, v in fields.items() if k in named or v != defaults[k]}


def _write_weights(
    path: Path, tensors: Sequence[TensorInfo], read: Callable[[str], QuantTensor]
) -> None:
    parts = [part for info in tensors for part in _parts(info)]
    metadata = {
        info.name: json.dumps(_description(info)) for info in tensors if info.format not in FLOATS
    }
    content = (pair for info in tensors for pair in _arrays(info, read(info.name)))
    write_safetensors(path, parts, content, metadata)


def _description(info: TensorInfo) -> dict[str, Any]:
    described: dict[str, Any] = {"format": info.format.name, "shape": list(info.shape)}
    if info.activations is not Activations.INT8:
        described["activations"] = info.activations.value
    if info.activations is Activations.STATIC:
        if info.input_scale is None:
            raise FaultError(f"'{info.name}' has static activations, but no scale for its input.")
        described["input_scale"] = info.input_scale
    return described


def _parts(info: TensorInfo) -> list[Part]:
    """Return the safetensors entries of a tensor."""
    form = info.format
    if form in FLOATS:
        return [plain_part(info)]
    rows, columns = info.matrix_shape
    parts = [Part(info.name + CODES, "U8", (rows, form.row_bytes(columns)))]
    if isinstance(form, BlockSpec):
        return parts
    scales = form.scale_shape((rows, columns))
    kind = "F16" if form.scale_type is ScaleType.F16 else "F32"
    parts.append(Part(info.name + SCALES, kind, scales))
    if not form.symmetric:
        parts.append(Part(info.name + ZEROS, "U8", scales))
    return [*parts, Part(info.name + ORDER, "I32", (columns,))] if is_ordered(form) else parts


def _arrays(info: TensorInfo, tensor: QuantTensor) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the data of each entry; a part that is not announced is caught by the writer."""
    if info.format in FLOATS:
        yield info.name, tensor.codes
        return
    yield info.name + CODES, tensor.codes
    if tensor.scales is not None:
        yield info.name + SCALES, tensor.scales
    if tensor.zeros is not None:
        yield info.name + ZEROS, tensor.zeros
    if tensor.order is not None:
        yield info.name + ORDER, tensor.order


class ArtefactCheckpoint(ClosedByWith):
    """An artefact as a checkpoint; opening it reads the JSON files and the header.

    Raises:
        BadFileError: a file or a tensor's parts are damaged.
        MissingError: the weights or the manifest are absent, so the artefact is not complete.
        UnsupportedError: it was written by a later version.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._facts = _read_facts(path)
        for name in (WEIGHTS, MANIFEST):
            if not (path / name).is_file():
                raise MissingError(
                    f"{path} lacks {name}, so it is no complete artefact; write it again."
                )
        self._file = SafetensorsFile(path / WEIGHTS)
        try:
            self._infos = _read_infos(self._file)
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    @property
    def facts(self) -> HuggingFaceFacts:
        """Configuration and tokenizer."""
        return self._facts

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its Hugging Face name: encoded ones first, in the order written."""
        return MappingProxyType(self._infos)

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing is left out."""
        return ()

    def read(self, name: str) -> QuantTensor:
        """Return a tensor as read-only views of the file; raises MissingError without one."""
        info = self._info(name)
        if info.format in FLOATS:
            return self._file.read(name)
        found = {part.name: self._file.read(part.name).codes for part in _parts(info)}
        codes, zeros = found[name + CODES], found.get(name + ZEROS)
        scales = _scales(info, found)
        return QuantTensor(info.format, info.matrix_shape, codes, scales, zeros, info.order)

    def release(self, name: str) -> None:
        """Let the system drop the tensor's pages."""
        for part in _parts(self._info(name)):
            self._file.release(part.name)

    def digest(self, name: str) -> str:
        """Return the SHA-256 of codes, then scales, zero points and order, hexadecimal."""
        return self._file.digest(*(part.name for part in _parts(self._info(name))))

    def stamps(self) -> tuple[FileStamp, ...]:
        """Return those of the configuration and of the weights."""
        return config_stamp(self._path), self._file.stamp()

    def close(self) -> None:
        """Let go of the file; views stay valid."""
        self._file.close()

    def _info(self, name: str) -> TensorInfo:
        try:
            return self._infos[name]
        except KeyError:
            raise missing_tensor(self._path, name, self._infos) from None


def _scales(
    info: TensorInfo, found: Mapping[str, NDArray[np.uint8]]
) -> NDArray[np.floating] | None:
    if isinstance(info.format, BlockSpec):
        return None
    kind = np.float16 if info.format.scale_type is ScaleType.F16 else np.float32
    return found[info.name + SCALES].view(kind)


def _read_facts(path: Path) -> HuggingFaceFacts:
    """Read the JSON files, and of the configuration what marks an artefact."""
    facts = read_facts(path)
    stated = _stated(path, facts.config["quantization_config"])
    return replace(facts, mlp_rotation=stated.mlp_rotation, kv_scales=stated.kv_scales)


def _stated(path: Path, fields: Mapping[str, Any]) -> ArtefactConfig:
    version = fields.get("format_version")
    if version != FORMAT_VERSION:
        raise UnsupportedError(
            f"{path} is an artefact of format version {version!r}; this fewbit reads version "
            f"{FORMAT_VERSION}, so use the release that wrote it."
        )
    try:
        return msgspec.convert(fields, ArtefactConfig)
    except msgspec.ValidationError as error:
        raise BadFileError(
            f"{path / CONFIG}: the quantization_config cannot be used ({quoted(str(error))}); it "
            "is damaged, or of a later version."
        ) from error


def _read_infos(file: SafetensorsFile) -> dict[str, TensorInfo]:
    """Describe the tensors; every entry of the file belongs to exactly one."""
    infos: dict[str, TensorInfo] = {}
    left = {name: stored.info for name, stored in file.header.tensors.items()}
    for name, text in file.header.metadata.items():
        infos[name] = _encoded(file.path, name, text)
        for part in _parts(infos[name]):
            _check_part(file.path, part, left.pop(part.name, None))
        if is_ordered(infos[name].format):
            infos[name] = replace(infos[name], order=_order(file, name))
    for name, info in left.items():
        if info.format not in FLOATS or name in infos:
            raise _bad(file.path, name, f"is in {info.format.name} without a format of its own")
        infos[name] = info
    return infos


def _order(file: SafetensorsFile, name: str) -> NDArray[np.int32]:
    order = file.read(name + ORDER).codes.view("<i4").reshape(-1).astype(np.int32)
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise _bad(file.path, name + ORDER, "does not have every column once")
    return order


def _encoded(path: Path, name: str, text: str) -> TensorInfo:
    described = parse_object(text.encode(), f"{path}: the description of {quoted(name)}")
    form, shape = described.get("format"), described.get("shape")
    told = set(described) - {"activations", "input_scale"}
    if told != {"format", "shape"} or not isinstance(form, str):
        raise _bad(path, name, "is not described by exactly a format and a shape")
    if not _is_shape(shape):
        raise _bad(path, name, f"has the shape {quoted(str(shape))}, not 1 to 4 sizes above 0")
    activations = _activations(path, name, described.get("activations", Activations.INT8.value))
    scale = _input_scale(path, name, activations, described.get("input_scale"))
    try:
        info = encoded_info(name, parse_format(form), tuple(shape))
        return replace(info, activations=activations, input_scale=scale)
    except (UsageError, UnsupportedError) as error:
        raise _bad(path, name, f"has a format that cannot be ({str(error).rstrip('.')})") from error


def _activations(path: Path, name: str, value: Any) -> Activations:
    known = [kind.value for kind in Activations]
    if value not in known:
        names = f"{', '.join(known[:-1])} or {known[-1]}"
        raise _bad(path, name, f"has activations {quoted(str(value))}, not {names}")
    return Activations(value)


def _input_scale(path: Path, name: str, activations: Activations, value: Any) -> float | None:
    if activations is not Activations.STATIC:
        if value is not None:
            raise _bad(path, name, f"has an input scale, but activations {activations.value}")
        return None
    is_scale = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_scale or not 0 <= value <= _LARGEST_FLOAT32:
        raise _bad(path, name, f"has the input scale {quoted(str(value))}, not a float32 from 0 on")
    return float(value)


def _is_shape(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and 1 <= len(value) <= 4
        and all(type(size) is int and 0 < size < 1 << 48 for size in value)
    )


def _check_part(path: Path, part: Part, info: TensorInfo | None) -> None:
    if info is None:
        raise _bad(path, part.name, "is missing, but its tensor is described")
    if info.format.name.upper() != part.dtype or info.shape != part.shape:
        raise _bad(
            path,
            part.name,
            f"is {info.format.name} {info.shape} where its format asks for "
            f"{part.dtype.lower()} {part.shape}",
        )


def _bad(path: Path, name: str, problem: str) -> BadFileError:
    return BadFileError(f"{path}: {quoted(name)} {problem}; the file is damaged, write it again.")
