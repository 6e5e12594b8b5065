"""Carrying a plan out: one tensor in memory at a time, sizes checked, manifest last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fewbit import __version__
from fewbit.atomic import arriving_together, is_free, require_apart, require_short, write_bytes
from fewbit.checkpoint.artefact import FORMAT_VERSION, write_artefact
from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo, content_digest
from fewbit.checkpoint.gguf_types import ValueType
from fewbit.checkpoint.gguf_write import overlay, write_gguf
from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import BadFileError, FaultError, MissingError, OutputError
from fewbit.formats.registry import F32, decode, encode, is_integer
from fewbit.formats.spec import QuantTensor, digest, join_rows
from fewbit.model.facts import quantized_formats
from fewbit.model.gguf_metadata import file_type
from fewbit.model.gguf_view import origin_of
from fewbit.model.sidecars import sidecars
from fewbit.model.weights import ModelSource, as_stored
from fewbit.model.written import written_config
from fewbit.program import Slot
from fewbit.quantization.made import NOTHING_MADE, Made
from fewbit.quantization.planned import Container, PlannedTensor, QuantizationPlan
from fewbit.quantization.solving import Solved, check_finite, solve_alone
from fewbit.records.artefact import ArtefactConfig
from fewbit.records.base import readable, to_json
from fewbit.records.kernels import Activations
from fewbit.records.manifest import Manifest, SourceFacts, TensorEntry, manifest_path, read_manifest
from fewbit.records.recipe import Recipe

Progress = Callable[[PlannedTensor], None]
"""Called when a tensor is done."""


def container_of(out: Path) -> Container:
    """Return the container that a path asks for: GGUF where it ends in .gguf, else a folder."""
    return Container.GGUF if out.suffix.lower() == ".gguf" else Container.FEWBIT


def write(
    planned: QuantizationPlan,
    out: Path,
    made: Made = NOTHING_MADE,
    progress: Progress | None = None,
) -> Manifest:
    """Write what a plan says, and return the manifest that was written with it.

    The source is only read. The artefact appears as a whole or not at all; a GGUF file's manifest
    lies beside it (`manifest_path`) and takes its place just before it.

    Args:
        planned: the plan.
        out: a folder, or a file that ends in .gguf.
        made: tensors that are there already; all others are read, and solved, as they are written.
        progress: told of each tensor.

    Raises:
        NumericalError: a value is not finite or beyond its format; says tensor, row and column.
        OutputError: `out` exists already, lies in the source, or cannot be written.
        UnsupportedError: the configuration cannot be expressed in the container's layout.
        FaultError: the artefact is not what was promised.
    """
    require_apart(out, planned.source.path)
    run = _Run(planned, made, progress)
    if planned.container is Container.GGUF:
        _write_gguf(run, out)
    else:
        _write_folder(run, out)
    check_written(planned, out, made)
    return run.manifest()


def require_free(planned: QuantizationPlan, out: Path) -> None:
    """Check, before hours of work, what `write` will ask of its output; raises as it."""
    require_output(planned.source, planned.container, out, planned.recipe)


def require_output(
    source: ModelSource, container: Container, out: Path, recipe: Recipe | None = None
) -> None:
    """Check that an artefact of a source may be written.

    Raises:
        OutputError: `out` or its manifest exists already, lies in the source, or has too long a
            name.
    """
    require_short(out)
    require_apart(out, source.path)
    if container is Container.FEWBIT:
        if not is_free(out):
            raise OutputError(f"{out} exists already; remove it or choose another output.")
        return
    manifest = manifest_path(out)
    taken = [path for path in (out, manifest) if path.exists()]
    if taken == [manifest] and _came_alone(out, source, recipe):
        return
    if taken:
        raise OutputError(f"{taken[0]} exists already; remove it or choose another output.")


def _came_alone(out: Path, source: ModelSource, recipe: Recipe | None) -> bool:
    """Whether a manifest is this job's own, whose writer was killed before the file followed it."""
    try:
        found = read_manifest(out)
    except (BadFileError, MissingError):
        return False
    return found.source.path == str(source.path) and recipe in (None, found.recipe)


class _Run:
    """The tensors of a plan, made one by one on request, and the record of each."""

    def __init__(self, planned: QuantizationPlan, made: Made, progress: Progress | None) -> None:
        self.planned = planned
        self.made = made
        self.source = planned.source
        self._origin = origin_of(planned.source)
        self._viewed = () if self._origin is planned.source else self._origin.slots
        """Slots of a source that is seen as a GGUF file: the record is of what is behind."""
        self._progress = progress or (lambda _: None)
        self._parts = _parts_by_name(planned)
        self._entries: dict[tuple[str, Slot], TensorEntry] = {}
        self._digests: dict[str, str] = {}
        self._mapped: PlannedTensor | None = None
        """What was read last: the writer may still look at its pages."""

    def infos(self) -> list[TensorInfo]:
        """Describe the tensors of the artefact, in the source's order."""
        return _stored_infos(self.planned, self.made)

    def read(self, name: str) -> QuantTensor:
        """Return a tensor of the artefact; where experts share it, from all their parts."""
        return join_rows([self._read(tensor) for tensor in self._parts[name]])

    def _read(self, tensor: PlannedTensor) -> QuantTensor:
        """Return a tensor or a part of one and record it; the pages of the last are let go."""
        self._let_go()
        self._mapped = tensor
        solved = self._solved(tensor)
        self._entries[tensor.source.name, tensor.slot] = self._entry(tensor, solved)
        self._progress(tensor)
        return solved.tensor

    def _let_go(self) -> None:
        if self._mapped is not None:
            self.source.checkpoint.release(self._mapped.source.name)
            self.made.release(self._mapped.slot)
            self._mapped = None

    def manifest(self) -> Manifest:
        """Return the record of the whole; every tensor of the artefact has been read."""
        self._let_go()
        planned = self.planned
        entries = [
            self._entries.get((t.source.name, t.slot)) or self._absent(t) for t in planned.tensors
        ]
        return Manifest(
            fewbit_version=__version__,
            source=_source_facts(planned, entries),
            container=planned.container.value,
            recipe=planned.recipe,
            calibration=self.made.calibration,
            inputs=self.made.inputs,
            importance=self.made.importance,
            allocation=self.made.allocation,
            tensors=tuple(entries),
            transforms=self.made.transforms,
            tuning=self.made.tuning,
            tuning_text=self.made.tuning_text,
            tuned=self.made.tune_record,
            making=self.made.making,
            kv_scales=self.made.kv_scales,
            draft=self.made.draft,
            promised_bytes=planned.promised_bytes,
            tensor_bytes=sum(entry.bytes for entry in entries),
            bits_per_weight=planned.bits_per_weight,
            source_bits_per_weight=planned.source_bits_per_weight,
        )

    def card(self) -> bytes | None:
        """Return the folder's model card, where one is asked for."""
        make = self.made.card
        return None if make is None else readable(make(self.manifest())).encode()

    def _solved(self, tensor: PlannedTensor) -> Solved:
        """Return a tensor in its format and in the convention of the container."""
        if not tensor.slot:
            return Solved(self.source.checkpoint.read(tensor.source.name), 0.0)
        solved = self.made.solved.get(tensor.slot) or self._made_now(tensor)
        if self.planned.container is Container.FEWBIT:
            return solved
        stored = as_stored(self.source.slots[tensor.slot], solved.tensor, tensor.format)
        return replace(solved, tensor=stored)

    def _made_now(self, tensor: PlannedTensor) -> Solved:
        if tensor.status == "quantized":
            return solve_alone(self.planned, tensor)
        kept = self.source.read(tensor.slot)
        check_finite(kept, tensor.label)
        return Solved(kept if kept.spec == tensor.format else encode(decode(kept), F32), 0.0)

    def _entry(self, tensor: PlannedTensor, solved: Solved) -> TensorEntry:
        return TensorEntry(
            **self._common(tensor),
            method=solved.method,
            bits_per_weight=8 * solved.tensor.nbytes / tensor.weights,
            bytes=solved.tensor.nbytes,
            relative_error=solved.relative_error,
            remarks=solved.remarks,
            damping=solved.damping,
            calibration_tokens=solved.tokens,
            sha256=digest(solved.tensor),
        )

    def _absent(self, tensor: PlannedTensor) -> TensorEntry:
        return TensorEntry(
            **self._common(tensor), method="", bits_per_weight=0.0, bytes=0, sha256=""
        )

    def _common(self, tensor: PlannedTensor) -> dict[str, Any]:
        scale = _input_scale(self._parts.get(tensor.stored, ()), self.made)
        info = self._origin.info(tensor.slot) if tensor.slot in self._viewed else tensor.source
        return {
            "source": info.name,
            "stored": tensor.stored,
            "slot": tensor.slot,
            "shape": info.shape,
            "source_format": info.format.name,
            "format": tensor.format.name,
            "activations": _recorded_activations(tensor, scale),
            "input_scale": scale,
            "status": tensor.status,
            "fallback": tensor.fallback,
            "reason": tensor.reason,
            "source_sha256": self._digest(info.name),
        }

    def _digest(self, name: str) -> str:
        """Return the hash of a tensor of the source, taken once however many parts it has."""
        if name not in self._digests:
            stored = name in self._origin.checkpoint.tensors
            holder = self._origin if stored else self.source
            self._digests[name] = holder.checkpoint.digest(name)
        return self._digests[name]


def _parts_by_name(planned: QuantizationPlan) -> dict[str, list[PlannedTensor]]:
    """Return what each tensor of the artefact is made from, in the order of its rows."""
    parts: dict[str, list[PlannedTensor]] = {}
    for tensor in planned.tensors:
        if tensor.stored:
            parts.setdefault(tensor.stored, []).append(tensor)
    return parts


def _stored_infos(planned: QuantizationPlan, made: Made) -> list[TensorInfo]:
    """Describe the tensors of the artefact, in the source's order."""
    infos = []
    for name, parts in _parts_by_name(planned).items():
        first, size = parts[0], sum(part.bytes for part in parts)
        whole = planned.source.checkpoint.tensors[first.source.name]
        shape = whole.shape if planned.container is Container.GGUF else first.source.shape
        scale = _input_scale(parts, made)
        rounding = first.rounding(scale)
        infos.append(TensorInfo(name, first.format, shape, size, rounding, scale))
    return infos


def _input_scale(parts: Sequence[PlannedTensor], made: Made) -> float | None:
    """Return the static scale of a stored tensor's input: the largest that one of its parts has."""
    solved = [made.solved[part.slot] for part in parts if part.slot in made.solved]
    return max((s.input_scale for s in solved if s.input_scale is not None), default=None)


def _recorded_activations(tensor: PlannedTensor, input_scale: float | None) -> Activations | None:
    is_matrix = tensor.slot and len(tensor.source.shape) > 1
    return tensor.rounding(input_scale) if is_matrix and is_integer(tensor.format) else None


def _write_folder(run: _Run, out: Path) -> None:
    facts = run.source.checkpoint.facts
    write_artefact(
        out,
        config=written_config(run.source),
        stated=_stated(run),
        sidecars=sidecars(facts),
        tensors=run.infos(),
        read=run.read,
        manifest=lambda: to_json(run.manifest()),
        card=run.card,
    )


def _write_gguf(run: _Run, out: Path) -> None:
    facts = run.source.checkpoint.facts
    assert isinstance(facts, GgufFacts)
    changes = {
        "general.file_type": (ValueType.UINT32, _file_type(run.planned)),
        "general.quantization_version": (ValueType.UINT32, 2),
    }
    manifest = manifest_path(out)
    require_free(run.planned, out)
    with arriving_together(manifest, out) as folder:
        write_gguf(folder / out.name, overlay(facts, changes), run.infos(), run.read)
        write_bytes(folder / manifest.name, to_json(run.manifest()))


def _stated(run: _Run) -> ArtefactConfig:
    """Return what the artefact's tensors cannot say."""
    return ArtefactConfig(
        format_version=FORMAT_VERSION,
        mlp_rotation=run.source.config.mlp_rotation,
        kv_scales=run.made.kv_scales,
    )


def _file_type(planned: QuantizationPlan) -> int:
    weights: Counter[str] = Counter()
    for tensor in planned.tensors:
        weights[tensor.format.name] += tensor.weights
    return file_type(weights)


def _source_facts(planned: QuantizationPlan, entries: list[TensorEntry]) -> SourceFacts:
    checkpoint = origin_of(planned.source).checkpoint
    digests = {entry.source: entry.source_sha256 for entry in entries}
    return SourceFacts(
        path=str(planned.source.path),
        sha256=content_digest(checkpoint, digests),
        formats=dict(Counter(info.format.name for info in checkpoint.tensors.values())),
        quantized=bool(quantized_formats(planned.source)),
    )


def check_written(planned: QuantizationPlan, out: Path, made: Made = NOTHING_MADE) -> None:
    """Open what was written and compare it with the promise, tensor by tensor."""
    promised = {
        i.name: (i.format, i.shape, i.nbytes, i.activations, i.input_scale)
        for i in _stored_infos(planned, made)
    }
    with open_checkpoint(out) as written:
        found = {
            n: (i.format, i.shape, i.nbytes, i.activations, i.input_scale)
            for n, i in written.tensors.items()
        }
    if found != promised:
        wrong = sorted(n for n in promised.keys() | found.keys() if promised.get(n) != found.get(n))
        raise FaultError(f"{out} was written, but {wrong[0]} in it is not what was promised.")
