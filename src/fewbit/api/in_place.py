"""`quantize_`: quantize the linear layers of a model where they are, as TorchAO does."""

from __future__ import annotations

import importlib.util
import sys

from fewbit.api.configs import scheme_of
from fewbit.api.filters import Filter, require_filter
from fewbit.api.model import Model
from fewbit.api.requantized import quantize_model
from fewbit.errors import UnsupportedError, UsageError


def quantize_(
    model: object,
    config: object,
    filter_fn: Filter | None = None,
    device: object = None,
) -> None:
    """Quantize linear layers of a model in place.

    Either all chosen layers are quantized, or none is and the error says why.

    Args:
        model: what `fewbit.load` returns, or a `torch.nn.Module` (needs the extra `torch`), whose
            quantized layers then run fewbit's kernels on the CPU.
        config: one of `Int4WeightOnlyConfig`, `Int8WeightOnlyConfig`,
            `Int8DynamicActivationInt8WeightConfig`, `Float8WeightOnlyConfig`.
        filter_fn: called with a module and its name, returns whether to quantize it; None for
            every linear layer. Of a fewbit model the module is a `LinearLayer`, and names are those
            of Hugging Face.
        device: None to leave the model where it is, or the CPU, where the kernels are.

    Raises:
        UsageError: an argument that is none of these, a filter that chooses nothing (the message
            names it and near matches), or a layer whose shape the format does not fit, by name.
        UnsupportedError: another device, or a module that is no plain linear layer, by name.
        KernelError: no kernel can run a layer in this format.
        NumericalError: a weight is not finite; says where.
    """
    scheme = scheme_of(config)
    if filter_fn is not None:
        require_filter(filter_fn)
    _require_cpu(device)
    if isinstance(model, Model):
        quantize_model(model, scheme, filter_fn)
        return
    _require_module(model)
    from fewbit.api.torch_model import quantize_module  # noqa: PLC0415 - torch is an extra

    quantize_module(model, scheme, filter_fn, to_cpu=device is not None)


def _require_cpu(device: object) -> None:
    if device is not None and str(device).partition(":")[0] != "cpu":
        raise UnsupportedError(
            f"device is {str(device)!r}; fewbit's kernels run on the CPU, so give 'cpu' or nothing."
        )


def _require_module(model: object) -> None:
    """Refuse what is no torch module; where torch was never imported, nothing is one."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return
    missing = importlib.util.find_spec("torch") is None
    extra = " (for those install the extra: pip install 'fewbit[torch]')" if missing else ""
    raise UsageError(
        f"The model is of type {type(model).__name__}; give what fewbit.load returns, or a "
        f"torch.nn.Module{extra}."
    )
