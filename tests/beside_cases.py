"""Tiny models of 8 bits, loaded so that every draft over their own store can be made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.formats.registry import parse_format
from fewbit.model.beside import early_exit, low_bit_copy, upper_halves
from fewbit.model.runner import Runner, RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import built_in
from fewbit.runtime.executor import Executor
from fewbit.runtime.step import PAGE, Span, StepInput

BINDINGS = {
    "nested": upper_halves,
    "exit": lambda runner: early_exit(runner, 2),
    "low-bit": lambda runner: low_bit_copy(runner, parse_format("int4-g32")),
}


def write_eight_bits(folder: Path, name: str = "llama") -> Path:
    """Write a tiny model of a family with int8 weights."""
    config = CONFIGS[name]
    if (folder / name).exists():
        return folder / name
    source = write_huggingface(folder / f"{name}-source", config, random_weights(config))
    quantize(open_model(source), built_in("rtn-int8-g32"), folder / name)
    return folder / name


def loaded(path: Path, **settings: object) -> Runner:
    """Return the model with room for four sequences of 128 positions."""
    fields = {"sequences": 4, "context": 128, "nested": True, **settings}
    return runner_of(open_model(path), RunSettings(**fields))


def rows_of(executor: Executor, tokens: np.ndarray, position: int, pages: np.ndarray) -> np.ndarray:
    """Run consecutive tokens of one sequence and return all their logits, copied."""
    span = Span(0, len(tokens), position, pages)
    wanted = np.arange(len(tokens), dtype=np.int32)
    return executor.step(StepInput(tokens.astype(np.int32), (span,), wanted)).copy()


def pages_of(sequence: int, count: int = 2) -> np.ndarray:
    """Return pages for a sequence of up to `count` pages."""
    return np.arange(sequence * count, (sequence + 1) * count, dtype=np.int32)


LENGTH = PAGE + 20
"""Tokens of a sequence: they take two pages."""


def tokens_of(seed: int, count: int = LENGTH) -> np.ndarray:
    """Return random tokens."""
    return np.random.default_rng(seed).integers(0, 320, count).astype(np.int32)
