"""GGUF files, from whatever the model is in: for llama.cpp and all that is built on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fewbit.atomic import arriving_together, write_bytes
from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_types import ValueType
from fewbit.checkpoint.gguf_write import overlay, part_paths, write_gguf_parts
from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import FaultError, UsageError
from fewbit.export.folder import left_out
from fewbit.export.job import require_absent
from fewbit.export.target import ExportSettings, Holding, Layout, held
from fewbit.formats.blocks import BLOCK
from fewbit.formats.registry import BF16, BLOCK_FORMATS, F16, F32, is_integer
from fewbit.formats.spec import NumberFormat, QuantSpec
from fewbit.model.binding import is_vector
from fewbit.model.families import FAMILIES, expert_of, is_router
from fewbit.model.gguf_metadata import file_type, refusals
from fewbit.model.gguf_view import GgufView, is_gguf_type, viewed
from fewbit.model.weights import ModelSource, as_stored, gguf_place
from fewbit.program import Slot
from fewbit.records.export import AbsentTensor, UnusedTensor
from fewbit.records.kernels import Activations
from fewbit.records.manifest import manifest_path

if TYPE_CHECKING:
    from fewbit.export.job import Job

_WHOLE_FILE = 1 << 62
_ORDER = ("q4_0", "q5_0", "q8_0", "q4_1", "q5_1")
"""The types that integers get which are in no GGUF type: of the small first."""


@dataclass(frozen=True)
class GgufTarget:
    """One file, or numbered parts of at most `split_bytes` of tensors."""

    split_bytes: int | None = None
    name: str = "gguf"
    container: Literal["file"] = "file"

    def layout(self, source: ModelSource) -> Layout:
        """Return a tensor's own type where it has one, else the type that keeps its codes.

        Vectors and routers are float32; the experts of a layer share a type. The notes have what
        the metadata says otherwise; raises UnsupportedError where it cannot.
        """
        holdings = {slot: self._holding(source, slot) for slot in source.slots}
        formats = {slot: holding.format for slot, holding in holdings.items()}
        view = GgufView(source, formats)
        viewed(view)
        notes = (*view.notes, *_activation_notes(source, formats))
        own = source.checkpoint.tensors
        return Layout(
            holdings=holdings,
            notes=notes,
            tokens=view.tokens,
            unused=tuple(_unused(own[name]) for name in view.extras if name in own),
            beside=sum(view.tensors[name].nbytes for name in view.extras if name not in own),
        )

    def _holding(self, source: ModelSource, slot: Slot) -> Holding:
        place = _place(source, slot)
        if is_vector(slot) or is_router(slot):
            return held(source, slot, place, [F32])
        columns = source.info(slot).matrix_shape[1]
        forms = {source.info(twin).format for twin in _sharing(source, slot)}
        found = [_candidates(form, columns) for form in sorted(forms, key=lambda f: f.name)]
        return held(source, slot, place, found[0] if len(found) == 1 else max(found, key=_width))

    def absent(self, source: ModelSource) -> tuple[AbsentTensor, ...]:
        """Return a folder's tensors without a slot; those of a GGUF file are kept."""
        return () if isinstance(source.checkpoint.facts, GgufFacts) else left_out(source)

    def refusals(
        self, source: ModelSource, formats: Mapping[Slot, NumberFormat]
    ) -> tuple[str, ...]:
        """Return what llama.cpp would not load or would compute otherwise."""
        return refusals(source.config, FAMILIES[source.config.family].gguf)

    def write(self, job: Job) -> None:
        """Write the file or its parts, and the manifest beside it or the first of them."""
        formats = job.planned.formats
        view = GgufView(
            job.source,
            formats,
            lambda slot, place, form: job.read(slot, lambda found: as_stored(place, found, form)),
            job.planned.layout.tokens,
        )
        changes = {
            "general.file_type": (ValueType.UINT32, file_type(_sizes(job))),
            "general.quantization_version": (ValueType.UINT32, 2),
        }
        infos = list(view.tensors.values())
        facts = overlay(view.facts, changes)
        largest = self.split_bytes or _WHOLE_FILE
        paths = part_paths(job.out, infos, largest)
        manifest = manifest_path(paths[0])
        require_absent(job.planned, paths)
        with arriving_together(manifest, *reversed(paths), out=job.out) as folder:
            write_gguf_parts(folder / job.out.name, facts, infos, view.read, largest)
            _check_written(folder / paths[0].name, view)
            write_bytes(folder / manifest.name, job.manifest_json())


def gguf(settings: ExportSettings) -> GgufTarget:
    """Return the target.

    Raises:
        UsageError: a setting that it does not have.
    """
    if settings.dtype != BF16:
        raise UsageError("--dtype is for --to hf; leave it out.")
    if settings.shard_bytes is not None:
        raise UsageError("--shard-size is for folders; give --split-size for --to gguf.")
    return GgufTarget(settings.split_bytes)


def _unused(info: TensorInfo) -> UnusedTensor:
    return UnusedTensor(
        source=info.name, shape=info.shape, format=info.format.name, bytes=info.nbytes
    )


def _place(source: ModelSource, slot: Slot) -> str:
    if isinstance(source.checkpoint.facts, GgufFacts):
        return source.slots[slot].name
    return gguf_place(source.config, slot).name


def _sharing(source: ModelSource, slot: Slot) -> Sequence[Slot]:
    """Return the slots that lie in one tensor of the file with a slot."""
    if expert_of(slot) is None or source.config.mixture is None:
        return [slot]
    layer, _, rest = slot.partition(".experts.")
    _, _, matrix = rest.partition(".")
    return [f"{layer}.experts.{n}.{matrix}" for n in range(source.config.mixture.experts)]


def _candidates(form: NumberFormat, columns: int) -> list[NumberFormat]:
    """Return the types that a format may get, the preferred ones first; never none."""
    if is_gguf_type(form):
        return [form]
    bits = form.bits if isinstance(form, QuantSpec) else 8
    types: list[NumberFormat] = [BLOCK_FORMATS[name].spec for name in _ORDER]
    wide = [t for t in types if bits <= int(t.bits_per_weight((1, 32)))]
    return wide if columns % BLOCK == 0 else [F16]


def _width(candidates: Sequence[NumberFormat]) -> float:
    return candidates[0].bits_per_weight((1, 256))


def _activation_notes(source: ModelSource, formats: Mapping[Slot, NumberFormat]) -> tuple[str, ...]:
    chosen = Counter(
        source.activations(slot).value
        for slot, form in formats.items()
        if is_integer(form) and not is_vector(slot)
        if source.activations(slot) is not Activations.INT8
    )
    return tuple(
        f"{count} layers round their inputs to {name}, which a GGUF file cannot say: each runtime "
        "rounds as it does."
        for name, count in chosen.items()
    )


def _sizes(job: Job) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for slot, holding in job.planned.holdings.items():
        rows, columns = job.source.info(slot).matrix_shape
        sizes[holding.format.name] += rows * columns
    return dict(sizes)


def _check_written(path: Path, view: GgufView) -> None:
    """Open what was written and compare it with what was promised."""
    with open_checkpoint(path) as written:
        if dict(written.tensors) != dict(view.tensors):
            raise FaultError(f"The tensors written to {path.name} are not what was promised.")
