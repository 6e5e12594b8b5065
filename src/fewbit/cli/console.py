"""The console that records are drawn on."""

from __future__ import annotations

from rich.console import Console

from fewbit.cli.output import abandon_stdout


class PipeConsole(Console):
    """A console whose reader may leave: the command goes on and ends with its own exit code."""

    def on_broken_pipe(self) -> None:
        """Write no more; rich itself would end the program with 1, which is no verdict."""
        self.quiet = True
        abandon_stdout()
