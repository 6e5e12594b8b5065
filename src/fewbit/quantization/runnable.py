"""Whether what a plan makes can be run."""

from __future__ import annotations

import numpy as np

from fewbit.errors import UnsupportedError
from fewbit.formats.spec import QuantTensor
from fewbit.quantization.planned import PlannedTensor, QuantizationPlan
from fewbit.runtime.pack import obstacle


def require_runnable(planned: QuantizationPlan) -> None:
    """Refuse a plan whose matrices no kernel would read, before hours of work.

    Raises:
        UnsupportedError: the message has the first of them, and why.
    """
    found = [(t, _obstacle(t)) for t in planned.tensors if t.status == "quantized"]
    refused = [(tensor, reason) for tensor, reason in found if reason is not None]
    if refused:
        tensor, reason = refused[0]
        count = "1 matrix" if len(refused) == 1 else f"{len(refused)} matrices"
        raise UnsupportedError(
            f"The recipe '{planned.recipe.name}' puts {count} in formats that can be "
            f"stored but not run, {tensor.label} in {tensor.format.name} for example: {reason}; "
            "choose other formats."
        )


def _obstacle(tensor: PlannedTensor) -> str | None:
    shape = tensor.source.matrix_shape
    return obstacle(QuantTensor(tensor.format, shape, np.empty((shape[0], 0), np.uint8)))
