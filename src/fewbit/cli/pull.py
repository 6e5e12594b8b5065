"""`fewbit pull`: a model into the cache, its path on stdout."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def pull(model: Annotated[str, Parameter(name="MODEL")], /) -> int:
    """Fetch a model into the cache and print its path.

    Example: fewbit pull smollm2-135m

    Args:
        model: A name such as smollm2-135m, org/name of the Hugging Face hub, org/name/file.gguf,
            or a path, which is printed as it is.
    """
    print(locate(model))
    return 0


def locate(model: str) -> Path:
    """Return the path of what a user calls a model; a fetch shows a progress bar on stderr.

    Raises:
        MissingError, DownloadError: as `fewbit.checkpoint.download.resolve`.
    """
    from fewbit.checkpoint.local import cache_root, local_path

    cache = cache_root(os.environ)
    here = local_path(model, cache)
    return _fetched(model, cache) if here is None else here


def _fetched(model: str, cache: Path) -> Path:
    from fewbit.checkpoint.download import resolve

    with ExitStack() as shown:
        bars: list[Callable[[int, int], None]] = []

        def show(done: int, total: int) -> None:
            if not bars:
                bars.append(shown.enter_context(_download_bar(model)))
            bars[0](done, total)

        return resolve(model, cache, show)


@contextmanager
def _download_bar(model: str) -> Iterator[Callable[[int, int], None]]:
    """Yield what shows bytes done and bytes there are, on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(model)
        yield lambda done, total: bar.update(task, completed=done, total=total)
