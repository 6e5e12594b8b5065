"""A linear layer of a torch model with quantized weights, on fewbit's kernels.

Importing this module imports torch, an extra.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit.api.schemes import Scheme
from fewbit.errors import UnsupportedError, UsageError
from fewbit.formats.registry import decode, is_integer
from fewbit.formats.spec import BlockSpec, QuantTensor, ScaleType
from fewbit.records.kernels import KernelRecord
from fewbit.runtime.chooser import rounding_of
from fewbit.runtime.native import Pool, thread_pool
from fewbit.runtime.native_linear import NativeLinear

_NUMBERS = itertools.count()
_LAYERS: weakref.WeakValueDictionary[int, QuantizedLinear] = weakref.WeakValueDictionary()
"""Every layer by its number, while it lives: an op of torch, which is what `torch.compile` leaves
as it is, takes tensors and numbers alone."""


class Threads:
    """The threads that the layers of a model share; copies of a model share them too."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: Pool | None = None

    @property
    def pool(self) -> Pool:
        """The threads, started when they are first needed."""
        if self._pool is None:
            self._pool = thread_pool(self._count)
        return self._pool

    def __deepcopy__(self, _memo: object) -> Threads:
        """Return itself."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return what a file can hold: how many they are."""
        return {"_count": self._count, "_pool": None}


class Packed:
    """A layer's weights as a kernel reads them; layers with tied weights share them."""

    def __init__(self) -> None:
        self.layer: NativeLinear | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: they are packed again from the layer's buffers."""
        return {"layer": None}


class DequantizedWeight(torch.Tensor):
    """What a quantized layer gives for `weight`: a copy of its values.

    A type of its own, so that torch's fused paths, which would multiply with it in place of the
    quantized weights, leave it alone.
    """


class QuantizedLinear(torch.nn.Linear):
    """A `torch.nn.Linear` whose weights are quantized; `quantize_` makes them.

    Inputs of any float type come and go in it; the product is computed in float32. Buffers hold
    codes, scales and zero points, so `state_dict`, `copy.deepcopy`, pickling and safetensors work;
    the kernel's own copy is packed from them when a row first comes. The gradient of the input is
    that of the dequantized weights, as if the input were not rounded; weights have none.
    """

    codes: Tensor
    """uint8 [outputs, bytes of a row]."""
    scales: Tensor | None
    """The bytes of the scales, uint8, so that no cast of the model to another type reaches them."""
    zeros: Tensor | None
    """uint8, or None where the format has none."""
    form: Tensor
    """The name of the format and of the rounding of inputs, as UTF-8 bytes."""
    scheme: Scheme
    weight_dtype: torch.dtype
    """The type that the weights had."""
    threads: Threads
    packed: Packed
    number: int
    """What the op in a graph knows the layer by; each copy has its own."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b, of x's type.

        Raises:
            UnsupportedError: x is not on the CPU.
            UsageError: its last dimension is not `in_features`, or it has no float type.
        """
        self._check(x)
        y = _linear(x, self.number, self.out_features)
        if self.bias is not None:
            y = y + self.bias.to(torch.float32)
        return y.to(x.dtype)

    @property
    def weight(self) -> Tensor:
        """The weights' values in their former type; decoded each time it is asked for."""
        values = torch.from_numpy(self.dequantized()).to(self.weight_dtype)
        return values.as_subclass(DequantizedWeight)

    @property
    def kernel(self) -> KernelRecord:
        """What runs the layer, and why nothing else."""
        return self._layer().kernel

    def dequantized(self) -> NDArray[np.float32]:
        """Return the weights' values, float32 [outputs, inputs]."""
        return decode(self.quantized())

    def quantized(self) -> QuantTensor:
        """Return the weights as fewbit holds them, views of the buffers."""
        shape = (self.out_features, self.in_features)
        scales = None if self.scales is None else self._scales(_array(self.scales))
        zeros = None if self.zeros is None else _array(self.zeros)
        return QuantTensor(self.scheme.format, shape, _array(self.codes), scales, zeros)

    def _scales(self, stored: NDArray[np.uint8]) -> NDArray[np.floating]:
        assert not isinstance(self.scheme.format, BlockSpec)
        if self.scheme.format.scale_type is ScaleType.F16:
            return stored.view(np.float16)
        return stored.view(np.float32)

    def multiplied(self, x: Tensor) -> Tensor:
        """Return x W^T, float32, for x of any float type and [..., inputs], without gradients."""
        rows = x.detach().to(torch.float32).reshape(-1, self.in_features).contiguous()
        y = torch.from_numpy(self._layer()(rows.numpy()))
        return y.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """Return shape, format and rounding, for `print(model)`."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {self.scheme.text}"
        )

    def enter(self) -> None:
        """Give the layer a number of its own."""
        self.number = next(_NUMBERS)
        _LAYERS[self.number] = self

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take over what a copy or a file holds, under a number of its own."""
        super().__setstate__(state)
        self.enter()

    def _layer(self) -> NativeLinear:
        if self.packed.layer is None:
            whole = is_integer(self.scheme.format)
            rounding = rounding_of(self.scheme.activations) if whole else None
            self.packed.layer = NativeLinear(self.quantized(), rounding, self.threads.pool)
        return self.packed.layer

    def _check(self, x: Tensor) -> None:
        if x.device.type != "cpu" or self.codes.device.type != "cpu":
            raise UnsupportedError(
                f"A quantized layer on {self.codes.device} was given a tensor on {x.device}; "
                "fewbit's kernels run on the CPU, so move both there."
            )
        if not x.is_floating_point() or x.ndim == 0 or x.shape[-1] != self.in_features:
            raise UsageError(
                f"A layer of {self.in_features} inputs was given {x.dtype} of shape "
                f"{tuple(x.shape)}; the last dimension must be the inputs, of a float type."
            )

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        """Load what `state_dict` gave; the kernel's copy is made anew.

        Raises:
            UsageError: it is of another format.
        """
        given = state_dict.get(f"{prefix}form")
        if given is not None and not torch.equal(given.cpu(), self.form.cpu()):
            raise UsageError(
                f"The layer {prefix.removesuffix('.')} holds {form_text(self.form)}, and what is "
                f"loaded into it is {form_text(given)}; quantize the model by the same "
                "configuration first."
            )
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
        self.packed.layer = None


def _layer_of(number: int) -> QuantizedLinear:
    layer = _LAYERS.get(number)
    if layer is None:
        raise UsageError(
            "A quantized layer was deleted before its result was used; keep the model until then."
        )
    return layer


@torch.library.custom_op("fewbit::linear", mutates_args=())
def _linear(x: Tensor, layer: int, outputs: int) -> Tensor:
    """Return x W^T, float32, of the layer of that number."""
    return _layer_of(layer).multiplied(x)


@_linear.register_fake
def _(x: Tensor, layer: int, outputs: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], outputs), dtype=torch.float32)


@torch.library.custom_op("fewbit::linear_gradient", mutates_args=())
def _linear_gradient(gradient: Tensor, layer: int, inputs: int) -> Tensor:
    """Return the gradient of the input, float32, from that of the result."""
    weight = torch.from_numpy(_layer_of(layer).dequantized())
    return gradient.to(torch.float32) @ weight


@_linear_gradient.register_fake
def _(gradient: Tensor, layer: int, inputs: int) -> Tensor:
    return gradient.new_empty((*gradient.shape[:-1], inputs), dtype=torch.float32)


def _note_layer(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
    x, ctx.layer, _ = inputs
    ctx.inputs, ctx.dtype = x.shape[-1], x.dtype


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return _linear_gradient(gradient, ctx.layer, ctx.inputs).to(ctx.dtype), None, None


_linear.register_autograd(_backward, setup_context=_note_layer)


@dataclass(frozen=True)
class Quantized:
    """A matrix as a quantized layer takes it; layers with tied weights take the same."""

    scheme: Scheme
    buffers: Mapping[str, Tensor | None]
    threads: Threads
    packed: Packed


def become_quantized(layer: torch.nn.Linear, quantized: Quantized) -> None:
    """Turn a plain linear layer into a quantized one; it stays the same object, with its hooks."""
    dtype = layer.weight.dtype
    del layer.weight
    layer.__class__ = QuantizedLinear
    for name, values in quantized.buffers.items():
        layer.register_buffer(name, values)
    layer.scheme, layer.weight_dtype = quantized.scheme, dtype
    layer.threads, layer.packed = quantized.threads, quantized.packed
    layer.enter()


def buffers_of(tensor: QuantTensor, scheme: Scheme) -> dict[str, Tensor | None]:
    """Return a quantized matrix as a layer's buffers."""
    scales, zeros = tensor.scales, tensor.zeros
    name = f"{scheme.format.name}/{scheme.activations.value}"
    return {
        "codes": torch.from_numpy(np.array(tensor.codes)),
        "scales": None if scales is None else torch.from_numpy(np.array(scales).view(np.uint8)),
        "zeros": None if zeros is None else torch.from_numpy(np.array(zeros)),
        "form": torch.frombuffer(bytearray(name.encode()), dtype=torch.uint8),
    }


def form_text(form: Tensor) -> str:
    """Return what a layer's `form` says."""
    return bytes(form.cpu().tolist()).decode(errors="replace")


def _array(values: Tensor) -> NDArray[np.uint8]:
    array: NDArray[np.uint8] = values.detach().contiguous().numpy()
    return array
