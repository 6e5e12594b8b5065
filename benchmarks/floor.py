"""The runtime's own floor: what rounding the inputs of layers does when no weight is rounded.

fewbit and llama.cpp multiply integer weights with inputs that are rounded to int8 per 32, so a file
of any format diverges from its source by that rounding alone. Here the source's own weights
read such inputs, in float32 by the torch executor, and are compared with the same run without
rounding. Layers read what the formats would round: the inputs of all matrices but the input table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from divergences import Windows, kept_values, state_of
from figures import Values

from fewbit.evaluate.language.divergence import compare
from fewbit.model.binding import is_vector
from fewbit.model.decoder import build_program
from fewbit.model.weights import open_model
from fewbit.runtime.torch_executor import DecodedWeights, TorchExecutor
from fewbit.runtime.torch_ops import RoundedActivations


def floor(source: Path, windows: Windows, folder: Path) -> Values:
    """Return KL(source || source with rounded inputs) of each window's second half."""
    path = folder / "measured" / "floor.json"
    return kept_values(path, state_of(source), windows, lambda wanted: _measured(source, wanted))


@torch.no_grad()
def _measured(path: Path, windows: Windows) -> Iterator[tuple[str, float]]:
    with open_model(path) as source:
        program = build_program(source.config)
        tensors = {slot: source.read(slot) for slot in program.slots()}
    weights = DecodedWeights(tensors, torch.float32)
    matrices = frozenset(slot for slot in tensors if not is_vector(slot))
    exact = TorchExecutor(program, weights)
    rounded = TorchExecutor(program, weights, rounded=matrices)
    for key, window in windows.items():
        first = len(window) // 2
        tokens = torch.from_numpy(window[:-1].astype(np.int64))[None]
        whole = exact.logits(exact.states(tokens)[0, first:])
        inputs = RoundedActivations.apply(rounded.states(tokens)[0, first:])
        found = compare(whole.numpy(), rounded.logits(inputs).numpy(), window[first + 1 :])
        yield key, float(found.divergence.mean())
