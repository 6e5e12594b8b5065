"""One engine for several texts that are taken piece by piece, in any order and by any thread."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from fewbit.engine.engine import Engine
from fewbit.engine.request import Output, Request
from fewbit.errors import FaultError
from fewbit.records.generation import GenerationRecord
from fewbit.sampling import TokenLogprob


@dataclass(frozen=True)
class Generated:
    """A finished generation; `str` gives its text."""

    text: str
    tokens: tuple[int, ...]
    """The generated ids, with the one that ended it."""
    record: GenerationRecord
    """Why it ended, the seed, and every time."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of each token, where they were asked for."""

    def __str__(self) -> str:
        """Return the text."""
        return self.text


class Desk:
    """Hands each request's outputs to whoever asks for them; whoever waits has the engine step.

    Args:
        engine: what serves.
        turn: held while the engine is at work; who holds it has the model alone.
    """

    def __init__(self, engine: Engine, turn: threading.RLock) -> None:
        self._engine = engine
        self._waiting: dict[int, deque[Output]] = {}
        self._turn = turn

    @property
    def busy(self) -> bool:
        """Whether somebody still takes a text."""
        return bool(self._waiting)

    def submit(self, request: Request) -> int:
        """Queue a request and return its number; raises RequestError."""
        with self._turn:
            number = self._engine.add(request)
            self._waiting[number] = deque()
            return number

    def take(self, number: int) -> Output | None:
        """Return a request's next output, for which the engine steps where there is none yet.

        None where the request was left, by another thread perhaps.
        """
        with self._turn:
            while (waiting := self._waiting.get(number)) is not None:
                if waiting:
                    return waiting.popleft()
                self._step()
            return None

    def leave(self, number: int) -> None:
        """Forget a request; where it has not ended, it does before the next step.

        It takes no lock, since the garbage collector may call it in the middle of a step.
        """
        self._waiting.pop(number, None)
        self._engine.cancel_soon(number)

    def _step(self) -> None:
        if not self._engine.busy:
            raise FaultError("a generation ended without its record.")
        for output in self._engine.step():
            waiting = self._waiting.get(output.request)
            if waiting is not None:
                waiting.append(output)


class TextStream(Iterator[str]):
    """The text of a generation in pieces, as they come; leaving it early cancels the generation.

    A piece is never half a character nor a part of what may become a stop string. At the end,
    `result` has the whole.
    """

    def __init__(self, desk: Desk, request: Request) -> None:
        self._desk = desk
        self._number = desk.submit(request)
        self._leave = weakref.finalize(self, desk.leave, self._number)
        self._outputs: list[Output] = []

    def __next__(self) -> str:
        """Return the next piece.

        Raises:
            FewbitError: the generation failed; the pieces before were right.
        """
        while self._leave.alive:
            output = self._take()
            if output is not None and output.text:
                return output.text
        fault = self._outputs[-1].fault if self._outputs else None
        if fault is not None:
            raise fault
        raise StopIteration

    def close(self) -> None:
        """End the generation where it is."""
        self._leave()

    @property
    def result(self) -> Generated | None:
        """The whole generation; None before its end, and where it was left early or failed."""
        last = self._outputs[-1] if self._outputs else None
        if last is None or last.record is None or last.fault is not None:
            return None
        return Generated(
            text="".join(output.text for output in self._outputs),
            tokens=tuple(token for output in self._outputs for token in output.tokens),
            record=last.record,
            logprobs=tuple(entry for output in self._outputs for entry in output.logprobs),
        )

    def _take(self) -> Output | None:
        try:
            output = self._desk.take(self._number)
        except BaseException:
            self._leave()
            raise
        if output is None:
            return None
        self._outputs.append(output)
        if output.record is not None:
            self._leave()
        return output
