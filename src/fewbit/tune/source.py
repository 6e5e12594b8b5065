"""Running the source up to the states that its head multiplies.

In bf16 the native executor does it, several times as fast as torch's on a CPU; in float32, which is
for tests and comparisons, torch's does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from fewbit.model.binding import bind
from fewbit.model.pieces import Piece, step_of
from fewbit.model.weights import ModelSource
from fewbit.program import Program
from fewbit.records.kernels import Activations
from fewbit.runtime.chooser import choose, demand
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.step import PAGE
from fewbit.runtime.torch_executor import TorchExecutor
from fewbit.tune.settings import Precision

RunSource: TypeAlias = Callable[[Tensor], Tensor]
"""Takes tokens, int64 [windows, length], and returns final states, [windows, length, hidden]."""

_NONE = np.empty(0, np.int32)


def run_source(
    source: ModelSource,
    program: Program,
    executor: TorchExecutor,
    precision: Precision,
    largest: tuple[int, int],
) -> RunSource:
    """Return what runs the source over a few windows at once.

    Args:
        source: the model.
        program: its Program.
        executor: torch's, with the source's weights, in the precision's arithmetic.
        precision: what is computed in.
        largest: windows, and tokens of each, that one call brings at most.

    Raises:
        KernelError: no kernel can run a matrix.
        UsageError: there is no memory for their keys and values.
    """
    if precision is Precision.F32:
        return executor.states
    return _natively(source, program, executor, largest)


def _natively(
    source: ModelSource, program: Program, executor: TorchExecutor, largest: tuple[int, int]
) -> RunSource:
    wanted = demand(activations=Activations.BF16)
    binding = bind(source, program, lambda slot, tensor: choose(slot, tensor, wanted))
    stream = executor.stream.layer, executor.stream.site
    native = NativeExecutor(
        binding,
        pages=largest[0] * -(-largest[1] // PAGE),
        threads=torch.get_num_threads(),
        taps=frozenset([stream]),
    )

    def run(tokens: Tensor) -> Tensor:
        windows, length = tokens.shape
        pages = np.arange(windows * -(-length // PAGE), dtype=np.int32).reshape(windows, -1)
        ids = tokens.numpy().astype(np.int32)
        native.step(step_of([Piece(ids[i], 0, pages[i], _NONE) for i in range(windows)]))
        found = torch.from_numpy(native.tap(*stream))
        return executor.finish(found.unflatten(0, (windows, length)), tokens)

    return run
