"""What becomes of every tensor, and how many bytes that takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.errors import UsageError
from fewbit.formats.registry import encoded_bytes
from fewbit.formats.spec import NumberFormat
from fewbit.model.families import expert_of
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.records.kernels import Activations
from fewbit.records.manifest import Status
from fewbit.records.recipe import Recipe


class Container(Enum):
    """What kind of artefact is written."""

    FEWBIT = "fewbit"
    """A folder in the layout of Hugging Face."""
    GGUF = "gguf"
    """One file with the source's metadata; GGUF types only."""


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """What becomes of one tensor of the source."""

    source: TensorInfo
    """Of experts that share a tensor: the part of one, under the name of the whole."""
    stored: str
    """Its name in the artefact, empty when absent."""
    slot: Slot
    """Its slot, empty where the Program has none."""
    format: NumberFormat
    """Its format in the artefact."""
    status: Status
    method: str = ""
    """How its codes are found; empty where it is not quantized."""
    activations: Activations = Activations.INT8
    """How the layer's input is to be rounded, where the format is an integer one."""
    fallback: str = ""
    """The format that the recipe asked for, where another is taken."""
    reason: str = ""

    @property
    def bytes(self) -> int:
        """Bytes in the artefact: codes, scales and zero points."""
        return (
            0 if self.status == "absent" else encoded_bytes(self.format, self.source.matrix_shape)
        )

    def rounding(self, input_scale: float | None) -> Activations:
        """Return how the layer's input is rounded, given its calibrated scale.

        Static without a scale is a table that is looked up only, whose input is never rounded.
        """
        if self.activations is Activations.STATIC and input_scale is None:
            return Activations.INT8
        return self.activations

    @property
    def label(self) -> str:
        """What the tensor is called in an error: its name, and the expert's number."""
        expert = expert_of(self.slot)
        return self.source.name if expert is None else f"{self.source.name} (expert {expert})"

    @property
    def weights(self) -> int:
        """Number of elements."""
        rows, columns = self.source.matrix_shape
        return rows * columns


@dataclass(frozen=True)
class QuantizationPlan:
    """Every tensor of the source, in the source's order, and what becomes of it."""

    source: ModelSource
    recipe: Recipe
    container: Container
    tensors: tuple[PlannedTensor, ...]

    @property
    def promised_bytes(self) -> int:
        """Bytes of all tensors of the artefact, without headers."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def source_bytes(self) -> int:
        """Bytes of all tensors of the source."""
        return sum(info.nbytes for info in self.source.checkpoint.tensors.values())

    @property
    def bits_per_weight(self) -> float:
        """Promised bits over the weights that are stored."""
        stored = [tensor for tensor in self.tensors if tensor.status != "absent"]
        return 8 * self.promised_bytes / sum(tensor.weights for tensor in stored)

    @property
    def source_bits_per_weight(self) -> float:
        """Bits over weights of the source."""
        shapes = [info.matrix_shape for info in self.source.checkpoint.tensors.values()]
        return 8 * self.source_bytes / sum(rows * columns for rows, columns in shapes)

    @property
    def formats(self) -> dict[Slot, NumberFormat]:
        """The format of every matrix that is quantized."""
        return {t.slot: t.format for t in self.tensors if t.slot and t.status == "quantized"}

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """One sentence for each format that some tensors cannot have, and what they get instead."""
        counts = Counter((t.reason, t.format.name) for t in self.tensors if t.fallback)
        return tuple(
            f"{reason}, so {count} matrices are in {form}."
            for (reason, form), count in counts.items()
        )

    @property
    def absent(self) -> tuple[PlannedTensor, ...]:
        """The tensors of the source that the artefact will not have."""
        return tuple(tensor for tensor in self.tensors if tensor.status == "absent")


def require_no_fallback(planned: QuantizationPlan) -> None:
    """Refuse a plan in which some tensor does not get the format its rule asks for first.

    Raises:
        UsageError: the message has every fallback.
    """
    if planned.fallbacks:
        raise UsageError(
            f"The recipe '{planned.recipe.name}' needs fallbacks, which strict forbids "
            f"({' '.join(planned.fallbacks)}); choose formats that divide every row, or leave "
            "strict out."
        )
