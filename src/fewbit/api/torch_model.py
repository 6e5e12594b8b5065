"""A torch model whose linear layers are quantized in place. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fewbit.api.filters import Filter, require_some
from fewbit.api.schemes import Scheme, require_fit
from fewbit.api.torch_linear import (
    Packed,
    Quantized,
    QuantizedLinear,
    Threads,
    become_quantized,
    buffers_of,
)
from fewbit.errors import NumericalError, UnsupportedError, UsageError
from fewbit.formats.registry import BF16, F16, F32
from fewbit.formats.spec import QuantTensor
from fewbit.quantization.solving import solve
from fewbit.runtime.native import available_cores

_FORMATS = {torch.float32: F32, torch.float16: F16, torch.bfloat16: BF16}


def quantize_module(
    model: torch.nn.Module, scheme: Scheme, filter_fn: Filter | None, *, to_cpu: bool
) -> None:
    """Quantize linear layers of a torch model in place: all that are chosen, or none.

    Layers with tied weights share the quantized ones. A table that a layer shares with an
    embedding stays as it is for the embedding.

    Args:
        model: any module; it may be a linear layer itself.
        scheme: what is to be done.
        filter_fn: chooses layers; None for every plain linear layer that is not quantized yet.
        to_cpu: whether to move the model to the CPU first.

    Raises:
        UsageError: nothing is chosen, or a layer that is quantized already or does not fit.
        UnsupportedError: a chosen module is no plain linear layer, or not on the CPU.
        KernelError: no kernel can run a layer in this format.
        NumericalError: a weight is not finite.
    """
    chosen = _chosen(model, filter_fn)
    for name, layer in chosen.items():
        _require_plain(name, layer)
        require_fit(name, tuple(layer.weight.shape), scheme)
        _require_data(name, layer.weight)
    if to_cpu:
        model.to("cpu")
    for name, layer in chosen.items():
        _require_here(name, layer.weight)
    for layer, quantized in _all_quantized(chosen, scheme):
        become_quantized(layer, quantized)


def _chosen(model: torch.nn.Module, filter_fn: Filter | None) -> dict[str, torch.nn.Module]:
    """Return the chosen modules by name, one that has several names once."""
    modules = dict(model.named_modules(remove_duplicate=False))
    layers = [name for name, module in modules.items() if _is_linear(module)]
    if filter_fn is None:
        names = layers
    else:
        names = [name for name, module in modules.items() if filter_fn(module, name)]
    require_some(names, layers, filter_fn)
    once = {id(modules[name]): name for name in reversed(names)}
    return {name: modules[name] for name in names if once[id(modules[name])] == name}


def _is_linear(module: torch.nn.Module) -> bool:
    """Return whether a module is what TorchAO takes by default, and not quantized yet."""
    others = (NonDynamicallyQuantizableLinear, QuantizedLinear)
    return isinstance(module, torch.nn.Linear) and not isinstance(module, others)


def _require_plain(name: str, module: torch.nn.Module) -> None:
    shown = name or "(the model itself)"
    if isinstance(module, QuantizedLinear):
        raise UsageError(f"The layer {shown} is quantized already; leave it out with filter_fn.")
    if type(module) is not torch.nn.Linear or "forward" in vars(module):
        raise UnsupportedError(
            f"The layer {shown} is a {type(module).__name__}, which may do more than multiply; "
            "leave it out with filter_fn, which may choose torch.nn.Linear as it is alone. "
            "Nothing was changed."
        )


def _require_data(name: str, weight: Tensor) -> None:
    if weight.is_meta or weight.dtype not in _FORMATS:
        raise UnsupportedError(
            f"The weights of the layer {name} are {weight.dtype} on {weight.device}; fewbit "
            "quantizes float32, float16 and bfloat16 that have values. Nothing was changed."
        )


def _require_here(name: str, weight: Tensor) -> None:
    if weight.device.type != "cpu":
        raise UnsupportedError(
            f"The weights of the layer {name} are on {weight.device}; fewbit's kernels run on the "
            "CPU, so give device='cpu' to move the model there. Nothing was changed."
        )


def _all_quantized(
    layers: Mapping[str, torch.nn.Module], scheme: Scheme
) -> list[tuple[torch.nn.Module, Quantized]]:
    """Return every layer with its quantized matrix; tied layers get the same one."""
    threads = Threads(torch.get_num_threads())
    weights: dict[int, tuple[str, Tensor]] = {}
    for name, layer in layers.items():
        weights.setdefault(id(layer.weight), (name, layer.weight))
    with ThreadPoolExecutor(available_cores()) as pool:
        jobs = {key: pool.submit(_solved, *where, scheme) for key, where in weights.items()}
        found = {
            key: Quantized(scheme, buffers_of(job.result(), scheme), threads, Packed())
            for key, job in jobs.items()
        }
    return [(layer, found[id(layer.weight)]) for layer in layers.values()]


def _solved(name: str, weight: Tensor, scheme: Scheme) -> QuantTensor:
    stored = weight.detach().contiguous()
    codes = stored.view(torch.uint8).numpy()
    tensor = QuantTensor(_FORMATS[weight.dtype], tuple(weight.shape), codes)
    try:
        return solve(tensor, scheme.format, scheme.method, name or "the model").tensor
    except NumericalError as error:
        raise NumericalError(f"{error} Nothing was changed.") from error
