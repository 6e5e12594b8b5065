"""Ctrl-C and SIGTERM in a long command: what is kept is no loss, and how it goes on is said."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from fewbit.errors import StoppedError

if TYPE_CHECKING:
    from fewbit.quantization.job import Stop


@contextlib.contextmanager
def stoppable() -> Iterator[Stop]:
    """Yield the wish to stop, which signals express while the block runs: a job's, with layers.

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


@contextlib.contextmanager
def resumable(work: Path | None) -> Iterator[None]:
    """Measure in the block; what stops it is no loss where a folder keeps what was measured.

    Raises:
        StoppedError: an interrupt or SIGTERM came, and there is such a folder.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if work is None:
            raise
        raise StoppedError(f"Stopped; what was measured is kept in {work}.") from error
