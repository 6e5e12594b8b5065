"""What a compression leaves at its output.

It is either the accepted artefact with its report and the evidence of every attempt, or the report
and the evidence alone: nothing that was not accepted is left to be taken for a model, but for the
closest one within a budget, in a folder of that name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fewbit.atomic import is_free, replacing_folder, write_bytes
from fewbit.errors import BadFileError, OutputError
from fewbit.records.base import from_json, to_json
from fewbit.records.evaluation import CompressReport
from fewbit.report.html import compress_page

REPORT = "report.json"
PAGE = "report.html"
ATTEMPTS = "attempts"
CLOSEST = "closest"


def deliver(report: CompressReport, made: Callable[[str], Path], out: Path) -> None:
    """Put the report, the evidence and what was accepted in the output's place.

    Args:
        report: with every attempt.
        made: where the artefact of a recipe lies.
        out: the folder to write.

    Raises:
        OutputError: others put something there meanwhile, or it cannot be written.
    """
    require_ours(out)  # others had all this time to put something there
    with replacing_folder(out) as work:
        (work / ATTEMPTS).mkdir()
        for attempt in report.attempts:
            write_bytes(work / attempt.evidence, to_json(attempt.evaluation))
        write_bytes(work / REPORT, to_json(report))
        write_bytes(work / PAGE, compress_page(report).encode())
        if report.accepted is not None:
            _place(made(report.accepted), work)
        elif report.closest is not None:
            _place(made(report.closest), work / CLOSEST)
        require_ours(out)


def _place(made: Path, to: Path) -> None:
    """Put an artefact there; where it was made it stays until the job is forgotten."""
    shutil.copytree(made, to, copy_function=_link, dirs_exist_ok=True)


def _link(one: str, other: str) -> None:
    try:
        os.link(one, other)
    except OSError:  # a file system without links
        shutil.copy2(one, other)


def require_ours(out: Path) -> None:
    """Refuse to replace anything but an empty folder or an earlier compression's.

    Raises:
        OutputError: something else is there.
    """
    if is_free(out):
        return
    try:
        from_json(CompressReport, (out / REPORT).read_bytes(), name=str(out / REPORT))
    except (OSError, BadFileError) as error:
        raise OutputError(
            f"{out} exists and was not written by fewbit compress; remove it or choose another "
            "output."
        ) from error
