"""torchao's safetensors folders, for transformers and vLLM; needs torch and torchao.

Codes lie one to a byte, so files are no smaller than int8. Names and attributes come from the
library itself (`runtime/torch_torchao.py`); what is stored is described in `checkpoint/torchao.py`,
which reads it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.safetensors_write import Part
from fewbit.checkpoint.torchao import METHOD
from fewbit.errors import MissingError, UnsupportedError
from fewbit.export.compressed_scheme import candidates
from fewbit.export.folder import left_out
from fewbit.export.layers import (
    exceeds_float16,
    float_holding,
    is_table,
    packed_slots,
    plain_modules,
    weight_only_notes,
)
from fewbit.export.packed import as_stored, write_packed
from fewbit.export.target import ExportSettings, Holding, Layout, dtype_of, held
from fewbit.formats.affine import integers
from fewbit.formats.registry import FLOATS
from fewbit.formats.spec import (
    Fp8Spec,
    Granularity,
    NumberFormat,
    QuantSpec,
    QuantTensor,
    ScaleType,
)
from fewbit.model.binding import is_vector
from fewbit.model.families import expert_of
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.records.export import AbsentTensor
from fewbit.records.kernels import Activations

if TYPE_CHECKING:
    from fewbit.export.job import Job

_DTYPE = "float16"
_QDATA, _SCALE, _ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"


@dataclass(frozen=True)
class TorchAoTarget:
    """Reads with transformers and vLLM, by way of torchao."""

    dtype: NumberFormat
    """What tables and other formats become."""
    name: str = METHOD
    container: Literal["folder"] = "folder"

    def layout(self, source: ModelSource) -> Layout:
        """Return a matrix's own integers or fp8, others in the nearest; floats as they are.

        The note says which type the model is to run in, and what codes take.

        Raises:
            UnsupportedError: experts of a mixture are packed.
        """
        note = (
            f"config.json names {_DTYPE}, the type of scales; codes take a byte each, whatever "
            "their bits."
        )
        holdings = {slot: self._holding(source, slot) for slot in source.slots}
        _require_no_experts(source, holdings)
        unnamed = [
            slot
            for slot, form in _packed(holdings).items()
            if _rounding(form, source.activations(slot)) is Activations.BF16
        ]
        return Layout(holdings=holdings, notes=(note, *weight_only_notes(source, unnamed)))

    def _holding(self, source: ModelSource, slot: Slot) -> Holding:
        form, stored = source.info(slot).format, source.huggingface_name(slot)
        if is_vector(slot) or is_table(slot) or form in FLOATS:
            return float_holding(source, slot, self.dtype)
        near = candidates(form)[0]
        if not isinstance(near, QuantSpec | Fp8Spec):
            return held(source, slot, stored, [self.dtype])
        if isinstance(near, QuantSpec):
            near = replace(near, scale_type=ScaleType.F16)
        parts = _parts("", near, source.info(slot).matrix_shape)
        return as_stored(held(source, slot, stored, [near]), parts)

    def absent(self, source: ModelSource) -> tuple[AbsentTensor, ...]:
        """Return the tensors without a slot."""
        return left_out(source)

    def refusals(
        self, source: ModelSource, formats: Mapping[Slot, NumberFormat]
    ) -> tuple[str, ...]:
        """Return what float16 is too small for; layers of different formats are no obstacle."""
        if not exceeds_float16(source):
            return ()
        return (
            "Activations of Gemma exceed float16, and vLLM refuses it for Gemma 3; the scales are "
            "in it here, so take compressed-tensors.",
        )

    def write(self, job: Job) -> None:
        """Write the folder.

        Raises:
            MissingError: torch or torchao is not installed.
        """
        source, formats = job.source, job.planned.formats
        metadata, quantization = _described(job)

        def announce(slot: Slot, module: str) -> list[Part]:
            return _parts(module, formats[slot], source.info(slot).matrix_shape)

        def make(_: Slot, __: str, tensor: QuantTensor) -> Iterator[tuple[str, NDArray[Any]]]:
            return _arrays(tensor)

        changes = {"dtype": _DTYPE, "quantization_config": quantization}
        write_packed(job, changes, announce, make, metadata=metadata)


def torchao(settings: ExportSettings) -> TorchAoTarget:
    """Return the target; raises UsageError for a setting it has not."""
    return TorchAoTarget(dtype_of(settings))


def _packed(holdings: Mapping[Slot, Holding]) -> dict[Slot, QuantSpec | Fp8Spec]:
    """Return the formats of the matrices that are not floats."""
    forms = {slot: holding.format for slot, holding in holdings.items()}
    found: dict[Slot, QuantSpec | Fp8Spec] = {}
    for slot in packed_slots(forms):
        form = forms[slot]
        assert isinstance(form, QuantSpec | Fp8Spec)
        found[slot] = form
    return found


def _require_no_experts(source: ModelSource, holdings: Mapping[Slot, Holding]) -> None:
    """Refuse packed experts: transformers 5.24 loads such a folder, but not them."""
    if any(expert_of(slot) is not None for slot in _packed(holdings)):
        raise UnsupportedError(
            f"{source.path} has a mixture's experts as integers or fp8, which transformers cannot "
            "read in torchao's format: it has a layer's experts in one parameter, which it fills "
            "with random numbers then; export to compressed-tensors instead."
        )


def _described(job: Job) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the file's metadata and the quantization_config, as torchao has them."""
    try:
        from fewbit.runtime.torch_torchao import Matrix, config_of, metadata_of  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingError(
            f"torch is needed to write this format ({error}); install it with "
            "`pip install 'fewbit[torch]' torchao==0.18.0`."
        ) from error
    source, holdings = job.source, job.planned.holdings
    matrices: list[Matrix] = []
    packed = _packed(holdings)
    for slot, form in packed.items():
        how = source.activations(slot)
        matrices.append((holdings[slot].stored, form, source.info(slot).matrix_shape, how))
    plain = (holding.stored for slot, holding in holdings.items() if slot not in packed)
    kinds = Counter((form, _rounding(form, how)) for _, form, _, how in matrices)
    quantization: dict[str, Any] = {
        "quant_method": METHOD,
        "include_input_output_embeddings": False,
        "modules_to_not_convert": list(plain_modules(source, job.planned.formats)),
    }
    if kinds:
        quantization["quant_type"] = {"default": config_of(*kinds.most_common(1)[0][0])}
    return metadata_of(matrices, plain), quantization


def _rounding(form: QuantSpec | Fp8Spec, how: Activations) -> Activations:
    """Return the rounding of inputs that torchao has for a format: of int8 rows, per token."""
    rows = isinstance(form, QuantSpec) and form.granularity is Granularity.ROW and form.bits == 8
    return how if rows and how is Activations.TOKEN else Activations.BF16


def _parts(module: str, form: NumberFormat, shape: tuple[int, int]) -> list[Part]:
    if isinstance(form, Fp8Spec):
        scales = Part(f"{module}.{_SCALE}", "F32", form.scale_shape(shape))
        return [Part(f"{module}.{_QDATA}", "F8_E4M3", shape), scales]
    assert isinstance(form, QuantSpec)
    scales = Part(f"{module}.{_SCALE}", "F16", form.scale_shape(shape))
    parts = [Part(f"{module}.{_QDATA}", "I8", shape), scales]
    return [*parts, Part(f"{module}.{_ZERO}", "I8", scales.shape)] if _has_zeros(form) else parts


def _arrays(tensor: QuantTensor) -> Iterator[tuple[str, NDArray[Any]]]:
    form = tensor.spec
    assert tensor.scales is not None
    if isinstance(form, Fp8Spec):
        yield _QDATA, tensor.codes
        yield _SCALE, tensor.scales
        return
    assert isinstance(form, QuantSpec)
    middle = 0 if form.symmetric else 1 << (form.bits - 1)
    yield _QDATA, (integers(tensor) - middle).astype(np.int8)
    yield _SCALE, tensor.scales
    if not _has_zeros(form):
        return
    if tensor.zeros is None:
        yield _ZERO, np.zeros(tensor.scales.shape, np.int8)
    else:
        yield _ZERO, (tensor.zeros.astype(np.int16) - middle).astype(np.int8)


def _has_zeros(form: QuantSpec) -> bool:
    """Return whether a matrix has zero points: all but int8 by row, whose class may leave them."""
    return not (form.bits == 8 and form.symmetric and form.granularity is Granularity.ROW)
