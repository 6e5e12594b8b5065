"""Several requests at once, none of which is waited for once the asking is stopped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def as_they_end(tasks: Iterable[Callable[[], T]], threads: int) -> Generator[T, None, None]:
    """Carry out tasks in threads, and yield what each returns, in the order in which they end.

    Where a task fails or the caller stops, no other task begins, and those that run are left alone:
    nothing interrupts a thread that waits for a silent server, and a pool's threads would keep the
    process until its time is up. These are daemons, so that the process ends without them.

    Raises:
        BaseException: what a task raised.
    """
    left, ended = deque(tasks), SimpleQueue[Future[T]]()
    count = len(left)
    for _ in range(min(threads, count)):
        Thread(target=_work, args=(left, ended), daemon=True).start()
    try:
        for _ in range(count):
            yield ended.get().result()
    finally:
        left.clear()


def _work(left: deque[Callable[[], T]], ended: SimpleQueue[Future[T]]) -> None:
    while True:
        try:
            task = left.popleft()
        except IndexError:
            return
        outcome = _outcome(task)
        if outcome.exception() is not None:
            left.clear()  # here, since whoever waits may come to it after this thread's next task
        ended.put(outcome)


def _outcome(task: Callable[[], T]) -> Future[T]:
    outcome: Future[T] = Future()
    try:
        outcome.set_result(task())
    except BaseException as error:  # raised again where it is waited for
        outcome.set_exception(error)
    return outcome
