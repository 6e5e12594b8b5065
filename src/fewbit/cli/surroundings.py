"""What a command finds around it, made fit for what it says: streams and the terminal's width."""

from __future__ import annotations

import io
import os
import shutil
import sys

NARROWEST = 40
"""Columns. What draws tables and help breaks on a few, and takes minutes over one."""


def make_fit() -> None:
    """Let stdout take every text, and let nothing be drawn narrower than `NARROWEST`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_rule(sys.stdout.encoding))
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)


def _rule(encoding: str) -> str:
    """Return what becomes of characters that an encoding has not.

    In UTF-8 these are the bytes of a file's name that is no UTF-8, and they are written as they
    are; elsewhere all others are written as escapes, as on stderr.
    """
    plain = encoding.lower().replace("-", "").replace("_", "")
    return "surrogateescape" if plain == "utf8" else "backslashreplace"
