"""The progress bar of long commands: on stderr, and only where that is a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress


def progress_bar() -> Progress:
    """Return a bar that leaves nothing behind, and shows nothing in a log."""
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)
