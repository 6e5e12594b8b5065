"""The manifest: everything about an artefact that cannot be seen in its weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from fewbit.errors import MissingError
from fewbit.records.allocation import AllocationRecord
from fewbit.records.base import Record, from_json
from fewbit.records.calibration import CalibrationFacts, ImportanceFacts, Inputs
from fewbit.records.export import ExportRecord
from fewbit.records.kernels import Activations
from fewbit.records.kv import KvScales
from fewbit.records.recipe import Recipe
from fewbit.records.tuning import TuneRecord

SCHEMA_VERSION = 1

_PART = re.compile(r"-[0-9]{5}-of-([0-9]{5})\.gguf$")

Status = Literal["quantized", "kept", "absent"]


class TensorEntry(Record, frozen=True, kw_only=True):
    """What became of one tensor of the source."""

    source: str
    """Its name in the source."""
    stored: str
    """Its name in the artefact; empty where the artefact has none."""
    slot: str
    """Its slot in the Program; empty where the Program has none."""
    shape: tuple[int, ...]
    source_format: str
    format: str
    """The stored number format, such as `int4-g32` or `bf16`."""
    bits_per_weight: float
    bytes: int
    activations: Activations | None = None
    """How the layer's input is rounded; None for a vector, and where the weights are floats."""
    input_scale: float | None = None
    """The calibrated scale of the layer's input, where activations are static."""
    method: str
    """How the codes were found; empty where the source's were kept."""
    status: Status
    fallback: str = ""
    """The format that the recipe asked for, where another had to be taken."""
    reason: str = ""
    """Why the tensor was kept, left out, or took a fallback."""
    relative_error: float = 0.0
    """||W - W'|| / ||W||, Frobenius norms, W the source's decoded values; ||W'|| for a zero W."""
    remarks: tuple[str, ...] = ()
    """What the solver had to do otherwise than its method says, such as raising the damping."""
    damping: float | None = None
    """What the solver added to the diagonal of the inputs' Gram matrix, as a part of its mean."""
    calibration_tokens: int | None = None
    """Tokens that reached the layer in calibration, of an expert its own; None without any."""
    source_sha256: str
    sha256: str
    """Of codes, scales and zero points as stored, one after the other."""


class Change(Record, frozen=True, kw_only=True):
    """A named function-preserving transform or tuning, and the tensors whose bits it changed."""

    name: str
    detail: str
    tensors: tuple[str, ...]
    """Names in the artefact."""


class SourceFacts(Record, frozen=True, kw_only=True):
    """The checkpoint that was quantized."""

    path: str
    sha256: str
    """Over the lines `<tensor's sha256>  <tensor's name>` in the source's order
    (`content_digest`)."""
    formats: dict[str, int]
    """Number of its tensors by number format."""
    quantized: bool
    """Whether some of its matrices lie on a quantization grid already; errors and divergences are
    then relative to that, not to the original model."""


class TextRequest(Record, frozen=True, kw_only=True):
    """What was asked for as calibration text."""

    files: tuple[str, ...] = ()
    """None for the default mix."""
    windows: int
    window: int
    """Tokens of a window."""
    seed: int


class Making(Record, frozen=True, kw_only=True):
    """What an artefact was made with: enough to make it again, and what its bits depend on."""

    versions: dict[str, str]
    """Of fewbit, NumPy, Python, and torch where it tuned."""
    kernels: str
    """The instruction set that the model was run with."""
    text: TextRequest | None = None
    """None where no text was read, or the caller gave token windows."""
    tune_windows: int | None = None
    imatrix: str | None = None


class DraftFacts(Record, frozen=True, kw_only=True):
    """What a draft was prepared for, and to which tokens its head was cut."""

    target: str
    """The target's name."""
    kept: int
    """Rows of the head."""
    vocabulary: int
    """Rows that it had."""
    counted_tokens: int
    """Tokens of the texts by whose frequency they were chosen: the calibration's windows and the
    text that Python carries."""
    coverage: float
    """The share of tokens that the head still has in the other half of the text that Python
    carries, which was not counted."""


class Manifest(Record, frozen=True, kw_only=True):
    """Written last into an artefact: whoever has it has the whole artefact."""

    schema_version: int = SCHEMA_VERSION
    fewbit_version: str
    source: SourceFacts
    container: Literal[
        "fewbit", "gguf", "hf", "compressed-tensors", "gptq", "gptq_v2", "awq", "torchao"
    ]
    recipe: Recipe
    calibration: CalibrationFacts | None = None
    """None where no method needed it."""
    inputs: Inputs | None = None
    """Whose layers gave the statistics; None where none were taken."""
    importance: ImportanceFacts | None = None
    """The importance matrix that was read in place of statistics."""
    allocation: AllocationRecord | None = None
    """How formats were chosen for a number of bytes; None where the recipe names them."""
    tensors: tuple[TensorEntry, ...]
    transforms: tuple[Change, ...] = ()
    tuning: tuple[Change, ...] = ()
    tuning_text: CalibrationFacts | None = None
    """What was tuned on; None where nothing was."""
    tuned: TuneRecord | None = None
    """Settings, course and outcome of the tuning; None where there was none."""
    export: ExportRecord | None = None
    """How an artefact was written in another format; None where it is as it was made."""
    making: Making | None = None
    """None in manifests that were written before it was recorded."""
    kv_scales: KvScales | None = None
    """Static scales of keys and values; None where the recipe asks for none."""
    draft: DraftFacts | None = None
    """None for a model that stands alone."""
    promised_bytes: int
    """Bytes of all tensors, as the plan had them."""
    tensor_bytes: int
    """Bytes of all tensors, as counted in the written artefact."""
    bits_per_weight: float
    """8 * tensor_bytes over the number of weights."""
    source_bits_per_weight: float


Card: TypeAlias = Callable[[Manifest], str]
"""Makes the model card of a folder, Markdown for its README.md."""


def manifest_path(artefact: Path) -> Path:
    """Return where an artefact's manifest lies: in its folder, or beside its GGUF file.

    A file in numbered parts has it beside the first, whichever is given.
    """
    if artefact.suffix.lower() == ".gguf":
        first = _PART.sub(r"-00001-of-\1.gguf", artefact.name)
        return artefact.with_name(first + ".manifest.json")
    return artefact / "manifest.json"


def read_manifest(artefact: Path) -> Manifest:
    """Read an artefact's manifest.

    Raises:
        MissingError: there is none.
        BadFileError: it is damaged or of another version.
    """
    path = manifest_path(artefact)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise MissingError(
            f"{artefact} has no readable manifest ({path}: {error.strerror}); only artefacts that "
            "fewbit wrote have one."
        ) from error
    return from_json(Manifest, text, name=str(path))
