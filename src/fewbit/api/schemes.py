"""What is to be done with a layer: format, method, and how its input is rounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewbit.errors import KernelError, UsageError
from fewbit.formats.registry import is_integer
from fewbit.formats.spec import NumberFormat, QuantSpec, QuantTensor
from fewbit.records.kernels import Activations
from fewbit.runtime.pack import obstacle


@dataclass(frozen=True)
class Scheme:
    """What a configuration of `quantize_` comes to."""

    format: NumberFormat
    activations: Activations = Activations.BF16
    method: str = "rtn"
    """A key of `methods.solvers.METHODS` that looks at the weights alone."""

    @property
    def text(self) -> str:
        """As a layer shows it, such as `weight=int4-g32-asym, activations=bf16`."""
        if not is_integer(self.format):
            return f"weight={self.format.name}"
        return f"weight={self.format.name}, activations={self.activations.value}"


def require_fit(layer: str, shape: tuple[int, int], scheme: Scheme) -> None:
    """Refuse a layer whose shape a format does not fit.

    Args:
        layer: its name.
        shape: outputs and inputs.
        scheme: what is to be done with it.

    Raises:
        UsageError: the format's groups do not divide the inputs.
        KernelError: no kernel reads a matrix of this shape in this format.
    """
    form = scheme.format
    group = form.group_size if isinstance(form, QuantSpec) else None
    if group is not None and shape[1] % group:
        raise UsageError(
            f"The layer {layer} has {shape[1]} inputs, which do not divide into groups of {group}; "
            "choose a smaller group, or leave the layer out with filter_fn. Nothing was changed."
        )
    reason = obstacle(QuantTensor(form, shape, np.empty((shape[0], 0), np.uint8)))
    if reason is not None:
        raise KernelError(
            f"The layer {layer} cannot run in {form.name}: {reason}; leave it out with filter_fn. "
            "Nothing was changed."
        )
