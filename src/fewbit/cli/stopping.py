"""Ctrl-C and SIGTERM in a long job: the first ends it at a good place, the second at once."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewbit.quantization.job import Stop


@contextlib.contextmanager
def stoppable() -> Iterator[Stop]:
    """Yield the wish to stop, which signals express while the block runs.

    Where the job says that it waits for a good place, the first signal does no more than that. Any
    other ends the job at once, by way of every clean-up: KeyboardInterrupt, or SystemExit for
    SIGTERM.
    """
    from fewbit.quantization.job import Stop

    stop = Stop()

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.ask():
            print("Stopping after this layer; once more to stop at once.", file=sys.stderr)
            return
        if number == signal.SIGTERM:
            sys.exit(128 + number)
        raise KeyboardInterrupt

    before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
