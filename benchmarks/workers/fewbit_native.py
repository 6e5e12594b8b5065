"""Measure fewbit on one model, in a process of its own; print one JSON object."""

from __future__ import annotations

import argparse
import json

import numpy as np
import timing

from fewbit.model.runner import Piece, Runner, load, step_of
from fewbit.program import Embed
from fewbit.runtime.step import PAGE


class Model:
    """A loaded model whose one sequence owns all pages in order."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        self.runner = load(path, threads=threads, context=context)
        self.pages = np.arange(-(-context // PAGE), dtype=np.int32)

    def forget(self, position: int) -> None:
        """Do nothing: later steps overwrite what stands from `position` on."""

    def run(self, tokens: list[int], position: int, *, every_logit: bool) -> None:
        """Run `tokens` from `position`; the logits of all, or of the last, are computed."""
        wanted = range(len(tokens)) if every_logit else [len(tokens) - 1]
        piece = Piece(
            np.array(tokens, np.int32), position, self.pages, np.array(list(wanted), np.int32)
        )
        self.runner.executor.step(step_of([piece]))


def bytes_per_token(runner: Runner) -> int:
    """Return the bytes of weights that one decoded token reads, as the kernels hold them.

    Of an input table that the head does not share, one row is read: not counted.
    """
    program = runner.program
    tables = {op.weight for op in program.ops if isinstance(op, Embed)}
    head = next(op for op in reversed(program.ops) if hasattr(op, "weight"))
    skipped = tables - {head.weight}
    return sum(kernel.bytes for kernel in runner.kernels if kernel.slot not in skipped)


def main() -> None:
    parser = argparse.ArgumentParser()
    timing.add_arguments(parser)
    arguments = parser.parse_args()
    model = Model(arguments.model, arguments.threads, arguments.context)
    kernels = sorted({kernel.kernel for kernel in model.runner.kernels})
    measured = timing.measure(model, arguments)
    facts = {"kernels": kernels, "bytes_per_token": bytes_per_token(model.runner)}
    print(json.dumps({**facts, **measured}))


if __name__ == "__main__":
    main()
