"""One linear layer on native kernels, without a model around it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.spec import QuantTensor
from fewbit.program import Linear, Program
from fewbit.records.kernels import KernelRecord
from fewbit.runtime.chooser import ANY, choose
from fewbit.runtime.executor import Binding
from fewbit.runtime.native import Pool
from fewbit.runtime.segment import Segment

_STEP_ROWS = 4096
"""Rows that run as one step; what a step holds beside the caller's arrays grows with its rows."""


class NativeLinear:
    """Computes x W^T with a quantized W, packed once."""

    def __init__(self, weight: QuantTensor, rounding: str | None, pool: Pool) -> None:
        """Choose a kernel and pack the weights.

        Args:
            weight: [outputs, inputs], in a format that a kernel reads.
            rounding: how inputs are rounded, as a `KernelRecord` names it; None for the default.
            pool: the threads that share the work, the caller's among them.

        Raises:
            KernelError: no kernel can run it.
        """
        rows, columns = weight.shape
        self.kernel: KernelRecord = choose("weight", weight, replace(ANY, activations=rounding))
        op = Linear(layer=0, site="linear", out="y", x="x", weight="weight")
        widths = {"x": columns, "y": rows}
        program = Program((op,), widths, logits="", layers=1, vocabulary=1, context=1 << 30)
        binding = Binding(program, {"weight": weight}, {"weight": self.kernel})
        self._segment = Segment(binding, slice(None), threads=pool)
        self._outputs = rows

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return x W^T, float32 [rows, outputs]; x is contiguous float32 [rows, inputs]."""
        result = np.empty((len(x), self._outputs), np.float32)
        for start in range(0, len(x), _STEP_ROWS):
            part = x[start : start + _STEP_ROWS]
            into = {"y": result[start : start + _STEP_ROWS]}
            self._segment.run([len(part)], {"x": part}, ["y"], into=into)
        return result
