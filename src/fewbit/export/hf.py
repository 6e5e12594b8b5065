"""Plain Hugging Face folders: floats as they are, integers as floats where that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.checkpoint.safetensors_write import plain_part
from fewbit.export.folder import left_out, write_folder
from fewbit.export.target import ExportSettings, Holding, Layout, dtype_of, held
from fewbit.formats.registry import BF16, F16, F32, FLOATS
from fewbit.formats.spec import NumberFormat
from fewbit.model.binding import is_vector
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.records.export import AbsentTensor

if TYPE_CHECKING:
    from fewbit.export.job import Job

_TORCH: Mapping[NumberFormat, str] = {F32: "float32", F16: "float16", BF16: "bfloat16"}


@dataclass(frozen=True)
class HuggingFaceTarget:
    """Reads with transformers, and with everything that reads its folders."""

    dtype: NumberFormat
    """What integers become."""
    name: str = "hf"
    container: Literal["folder"] = "folder"

    def layout(self, source: ModelSource) -> Layout:
        """Return a float matrix's own format, and `dtype` for integers; vectors become float32."""
        return Layout(holdings={s: plain_holding(source, s, self.dtype) for s in source.slots})

    def absent(self, source: ModelSource) -> tuple[AbsentTensor, ...]:
        """Return the tensors without a slot."""
        return left_out(source)

    def refusals(
        self, source: ModelSource, formats: Mapping[Slot, NumberFormat]
    ) -> tuple[str, ...]:
        """Return nothing: transformers has all these architectures."""
        return ()

    def write(self, job: Job) -> None:
        """Write the folder; config.json names the type that most weights are in."""
        holdings = job.planned.holdings
        parts = [
            plain_part(TensorInfo(h.stored, h.format, _shape(job.source, slot), h.bytes))
            for slot, h in holdings.items()
        ]
        sizes: dict[NumberFormat, int] = {}
        for holding in holdings.values():
            sizes[holding.format] = sizes.get(holding.format, 0) + holding.bytes
        dtype = _TORCH[max(sizes, key=sizes.__getitem__)]
        write_folder(job, {"dtype": dtype}, parts, _content(job))


def hf(settings: ExportSettings) -> HuggingFaceTarget:
    """Return the target.

    Raises:
        UsageError: a setting that it does not have.
    """
    return HuggingFaceTarget(dtype_of(settings))


def plain_holding(source: ModelSource, slot: Slot, dtype: NumberFormat) -> Holding:
    """Return a slot's own float format, `dtype` for integers, float32 for vectors that change."""
    form, stored = source.info(slot).format, source.huggingface_name(slot)
    moved = source.slots[slot].offset or source.slots[slot].order is not None
    if is_vector(slot):
        return held(source, slot, stored, [F32] if moved or form not in FLOATS else [form])
    return held(source, slot, stored, [form if form in FLOATS else dtype])


def _shape(source: ModelSource, slot: Slot) -> tuple[int, ...]:
    rows, columns = source.info(slot).matrix_shape
    return (columns,) if is_vector(slot) else (rows, columns)


def _content(job: Job) -> Iterator[tuple[str, NDArray[Any]]]:
    for slot, holding in job.planned.holdings.items():
        yield holding.stored, job.read(slot).codes
