"""What `--draft` names, found, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

if TYPE_CHECKING:
    from fewbit.engine.chosen_draft import ChosenDraft, OpenedDraft

NONE = "none"

DraftTextOption: TypeAlias = Annotated[
    Path | None, Parameter(help="A text file that a suffix draft looks in too.")
]
DraftTokensOption: TypeAlias = Annotated[int, Parameter(help="Tokens drafted at once, at most.")]
DraftTreeOption: TypeAlias = Annotated[
    int,
    Parameter(
        help="Branches beside the drafted chain at most, where they are expected to pay; 0 "
        "drafts chains."
    ),
]

_UNPREPARED = (
    "it runs as its file has it; what 'fewbit draft prepare' makes of it costs less a token."
)


def chosen_draft(
    name: str, longest: int, text: Path | None = None, *, branches: int = 0
) -> ChosenDraft:
    """Return the draft of this name, a model's found and perhaps fetched with a bar on stderr.

    Arguments and errors are those of `engine.chosen_draft.choose_draft`.
    """
    from fewbit.cli.pull import locate
    from fewbit.engine.chosen_draft import choose_draft

    return choose_draft(name, longest, locate, text, branches=branches)


def draft_notes(opened: OpenedDraft) -> tuple[str, ...]:
    """Return sentences about how a draft was made ready, and what sets it apart."""
    return tuple(f"draft: {line}" for line in _notes(opened))


def _notes(opened: OpenedDraft) -> Iterator[str]:
    from fewbit.records.kernels import kernel_fallbacks
    from fewbit.report.loading import describe_draft_kernels, describe_loading
    from fewbit.report.pair import describe_difference

    if opened.model is None:
        where = "on the model's own KV cache" if opened.head is None else "a head with a KV cache"
        yield from describe_draft_kernels(opened.kernels, where)
        yield from () if opened.head is None else opened.head.notes
        return
    runner = opened.model.runner
    yield from describe_loading(runner.loading)
    yield from kernel_fallbacks(runner.kernels)
    if runner.config.head_rows is None:
        yield _UNPREPARED
    yield from map(describe_difference, opened.model.differences)
