"""The progress bar of long commands: on stderr, and only where that is a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_LOG_SECONDS = 30.0
"""Without a terminal a line is written when a step begins and at most so often within one."""


def progress_bar() -> Progress:
    """Return a bar that leaves nothing behind, and shows nothing in a log."""
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


@contextlib.contextmanager
def watched() -> Iterator[Callable[[str, int, int], None]]:
    """Yield what is told of progress: what is done, how much of it, and how much there is.

    A terminal has a bar with the time that passed and the time that remains; elsewhere there are
    lines, few of them. A message about no amount at all is a note, and stays.
    """
    console = Console(stderr=True, highlight=False)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        yield _shown(bar, console) if console.is_terminal else _logged(console)


def _shown(bar: Progress, console: Console) -> Callable[[str, int, int], None]:
    task = bar.add_task("", total=None)
    kind = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal kind
        if not total:
            console.print(what, markup=False)
            return
        begun = what.partition(" ")[0]
        if begun != kind:
            bar.reset(task)
            kind = begun
        bar.update(task, description=what, completed=done, total=total)

    return show


def _logged(console: Console) -> Callable[[str, int, int], None]:
    kind, began, last, first = "", 0.0, 0.0, 0

    def log(what: str, done: int, total: int) -> None:
        nonlocal kind, began, last, first
        begun, now = what.partition(" ")[0], time.monotonic()
        if total and begun == kind and now - last < _LOG_SECONDS:
            return
        if begun != kind:
            kind, began, first = begun, now, done
        last = now
        left = _left(now - began, done - first, total - done)
        line = f"{what} ({done} of {total}{left})" if total else what
        console.print(line, markup=False, soft_wrap=True)

    return log


def _left(seconds: float, done: int, more: int) -> str:
    """Return how long the rest will take, in words, were it as what is done; else nothing."""
    if done <= 0 or more <= 0:
        return ""
    left = seconds / done * more
    return f", about {left / 60:.0f} min left" if left > 90.0 else f", about {left:.0f} s left"
