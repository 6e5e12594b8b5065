"""torchao's names for packed matrices: made by its own classes, from shapes alone.

The layout of its safetensors files is tied to class names and their attributes, so the library says
them itself: every matrix is built of arrays without data and flattened by the code that saves it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch

from fewbit.errors import MissingError
from fewbit.formats.spec import Fp8Spec, Granularity, QuantSpec
from fewbit.records.kernels import Activations

try:
    from torchao.core.config import config_to_dict
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import (
        Float8Tensor,
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8Tensor,
        Int8WeightOnlyConfig,
        IntxUnpackedToInt8Tensor,
        IntxWeightOnlyConfig,
        MappingType,
        PerAxis,
        PerGroup,
        PerRow,
        PerTensor,
    )
    from torchao.quantization.quantize_.workflows import QuantizeTensorToInt8Kwargs
except ImportError as error:
    raise MissingError(
        f"torchao is not installed as it is needed ({error}); install it with "
        "`pip install torchao==0.18.0`."
    ) from error

Matrix = tuple[str, QuantSpec | Fp8Spec, tuple[int, int], Activations]
"""A weight's name, its format, its shape, and how its inputs are rounded."""

_DTYPE = torch.float16
"""What the layers compute in, and the type of scales."""


def metadata_of(matrices: Iterable[Matrix], plain: Iterable[str]) -> dict[str, str]:
    """Return a file's metadata: the description of every tensor, and the list of them."""
    tensors = {name: torch.empty((), device="meta") for name in plain}
    tensors |= {name: _tensor(spec, shape, how) for name, spec, shape, how in matrices}
    described: dict[str, str] = flatten_tensor_state_dict(tensors)[1]
    return described


def config_of(spec: QuantSpec | Fp8Spec, activations: Activations) -> dict[str, Any]:
    """Return the configuration of `quantize_` that gives matrices of a format, as JSON."""
    described: dict[str, Any] = json.loads(json.dumps(config_to_dict(_config(spec, activations))))
    return described


def _tensor(spec: QuantSpec | Fp8Spec, shape: tuple[int, int], how: Activations) -> torch.Tensor:
    if isinstance(spec, Fp8Spec):
        whole = spec.granularity is Granularity.TENSOR
        return Float8Tensor(
            _meta(shape, torch.float8_e4m3fn),
            _meta(spec.scale_shape(shape), torch.float32),
            block_size=list(shape) if whole else [1, shape[1]],
            dtype=_DTYPE,
        )
    scales = spec.scale_shape(shape)
    block = [1, shape[1] // scales[1]]
    codes, scale = _meta(shape, torch.int8), _meta(scales, _DTYPE)
    if _is_int8(spec):
        rounding = QuantizeTensorToInt8Kwargs(granularity=PerRow())
        kwargs = rounding if how is Activations.TOKEN else None
        return Int8Tensor(codes, scale, block, _DTYPE, act_quant_kwargs=kwargs)
    return IntxUnpackedToInt8Tensor(
        codes,
        scale,
        _meta(scales, torch.int8),
        getattr(torch, f"int{spec.bits}"),
        block,
        _DTYPE,
        None,
    )


def _config(spec: QuantSpec | Fp8Spec, how: Activations) -> Any:
    if isinstance(spec, Fp8Spec):
        whole = spec.granularity is Granularity.TENSOR
        return Float8WeightOnlyConfig(granularity=PerTensor() if whole else PerRow())
    if _is_int8(spec):
        dynamic = how is Activations.TOKEN
        return Int8DynamicActivationInt8WeightConfig() if dynamic else Int8WeightOnlyConfig()
    return IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, f"int{spec.bits}"),
        granularity=PerGroup(spec.group_size) if spec.group_size else PerAxis(0),
        mapping_type=MappingType.SYMMETRIC if spec.symmetric else MappingType.ASYMMETRIC,
    )


def _is_int8(spec: QuantSpec) -> bool:
    return spec.bits == 8 and spec.symmetric and spec.granularity is Granularity.ROW


def _meta(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
