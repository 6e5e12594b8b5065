"""A fewbit model whose layers are quantized in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace

from fewbit.api.filters import Filter, require_filter, require_some
from fewbit.api.model import Model
from fewbit.api.schemes import Scheme, require_fit
from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.errors import UsageError
from fewbit.formats.registry import encoded_bytes
from fewbit.formats.spec import QuantTensor
from fewbit.model.binding import is_vector
from fewbit.model.families import is_router
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.quantization.solving import solve
from fewbit.runtime.native import available_cores


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer of a fewbit model, as a filter of `quantize_` sees it."""

    in_features: int
    out_features: int
    format: str
    """The number format that its weights have now."""
    tied: bool = False
    """Whether its matrix is the table of the input's embeddings too."""


@dataclass(frozen=True)
class RequantizedSource(ModelSource):
    """Reads like the source it was made from, but for the slots that have a scheme."""

    schemes: Mapping[Slot, Scheme] = field(default_factory=dict)
    ready: dict[Slot, QuantTensor] = field(default_factory=dict)
    """Tensors quantized ahead, each until it is released."""

    @property
    def edited(self) -> bool:
        """Whether some slot has a scheme."""
        return bool(self.schemes)

    def info(self, slot: Slot) -> TensorInfo:
        """Return what is stored for a slot, in the format and with the activations it gets."""
        info = super().info(slot)
        scheme = self.schemes.get(slot)
        if scheme is None:
            return info
        return replace(
            info,
            format=scheme.format,
            nbytes=encoded_bytes(scheme.format, info.matrix_shape),
            activations=scheme.activations,
            input_scale=None,
        )

    def read(self, slot: Slot) -> QuantTensor:
        """Return a slot's tensor; one that has its format already comes through bit for bit.

        Raises:
            NumericalError: a weight is not finite.
        """
        if slot in self.ready:
            return self.ready[slot]
        stored = super().read(slot)
        scheme = self.schemes.get(slot)
        if scheme is None or stored.spec == scheme.format:
            return stored
        return solve(stored, scheme.format, scheme.method, self.layer_name(slot)).tensor

    def quantize_ahead(self, slots: Sequence[Slot]) -> None:
        """Quantize some slots' tensors side by side; raises as `read`, for the first of them."""
        with ThreadPoolExecutor(available_cores()) as pool:
            self.ready.update(zip(slots, pool.map(self.read, slots), strict=True))

    def release(self, slot: Slot) -> None:
        """Let go of a slot's tensor for now."""
        self.ready.pop(slot, None)
        super().release(slot)

    def layer_name(self, slot: Slot) -> str:
        """Return what Hugging Face calls the layer of a slot; the head's where it is tied."""
        if slot == "embed.weight":
            return "lm_head"
        return self.huggingface_name(slot).removesuffix(".weight")


def quantize_model(model: Model, scheme: Scheme, filter_fn: Filter | None) -> None:
    """Quantize linear layers of a loaded model; where that fails, the model stays as it was.

    The router of a mixture is no layer to be quantized, since experts are chosen in float32. A
    table shared by input and output is one matrix, and its layer is `lm_head`. The new weights are
    made and packed before the old ones go.

    Raises:
        UsageError: the filter chose nothing, or a layer that is quantized by `quantize_` already,
            or one whose columns the format does not divide.
        KernelError: no kernel can run a layer in this format.
        NumericalError: a weight is not finite.
        RequestError: a generation is under way.
    """
    model.require_idle("changing the model's weights")
    source = _source_of(model.source)
    layers = _layers(source)
    chosen = _chosen(source, layers, filter_fn)
    for name in chosen:
        require_fit(name, source.outline(layers[name]).shape, scheme)
    schemes = {**source.schemes, **{layers[name]: scheme for name in chosen}}
    changed = replace(source, schemes=schemes, ready={})
    changed.quantize_ahead([layers[name] for name in chosen])
    model.replace_source(changed)


def _source_of(source: ModelSource) -> RequantizedSource:
    if isinstance(source, RequantizedSource):
        return source
    return RequantizedSource(**{f.name: getattr(source, f.name) for f in fields(ModelSource)})


def _layers(source: RequantizedSource) -> dict[str, Slot]:
    """Return the slots of linear layers by the layers' names."""
    return {
        source.layer_name(slot): slot
        for slot in source.slots
        if not is_vector(slot)
        and not is_router(slot)
        and (slot != "embed.weight" or source.config.tied)
    }


def _chosen(
    source: RequantizedSource, layers: Mapping[str, Slot], filter_fn: Filter | None
) -> list[str]:
    left = [name for name, slot in layers.items() if slot not in source.schemes]
    if filter_fn is None:
        require_some(left, left, None)
        return left
    require_filter(filter_fn)
    chosen = [name for name, slot in layers.items() if filter_fn(_view(source, slot), name)]
    require_some(chosen, layers, filter_fn)
    again = [name for name in chosen if name not in left]
    if again:
        raise UsageError(
            f"The layer {again[0]} is quantized already; leave it out, or load the model anew."
        )
    return chosen


def _view(source: ModelSource, slot: Slot) -> LinearLayer:
    outline = source.outline(slot)
    rows, columns = outline.shape
    tied = slot == "embed.weight"
    return LinearLayer(columns, rows, outline.spec.name, tied)
