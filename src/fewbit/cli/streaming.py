"""One generation to the terminal, token by token, that Ctrl-C ends and does not lose."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from fewbit.errors import FaultError

if TYPE_CHECKING:
    from fewbit.engine.engine import Engine
    from fewbit.engine.request import Output, Request
    from fewbit.records.generation import GenerationRecord


@dataclass(frozen=True)
class Streamed:
    """What was written, and the record of how."""

    text: str
    tokens: tuple[int, ...]
    record: GenerationRecord


def stream(
    engine: Engine,
    request: Request,
    write: Callable[[str], object],
    ended: Callable[[GenerationRecord], object] = lambda _: None,
) -> Streamed:
    """Serve one request and write its text as it comes; Ctrl-C cancels it and keeps the text.

    `ended` is given the record, also of a request that failed.

    Raises:
        FewbitError: the request failed; what came before was written.
    """
    texts: list[str] = []
    tokens: list[int] = []
    with interruptible() as interrupted:
        for output in _outputs(engine, request, interrupted):
            write(output.text)
            texts.append(output.text)
            tokens += output.tokens
            if output.record is not None:
                ended(output.record)
            if output.fault is not None:
                raise output.fault
            if output.record is not None:
                return Streamed("".join(texts), tuple(tokens), output.record)
    raise FaultError("a generation ended without its record.")


def write_out(text: str) -> None:
    """Write to stdout at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed; a second Ctrl-C interrupts as ever.

    A step is never cut in the middle, so what was generated is whole.
    """
    pressed: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, _frame: FrameType | None) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def _outputs(engine: Engine, request: Request, interrupted: Callable[[], bool]) -> Iterator[Output]:
    number = engine.add(request)
    try:
        while engine.busy:
            if interrupted() and (last := engine.cancel(number)):
                yield last
                return
            yield from engine.step()
    finally:
        engine.cancel(number)
