"""Whether the ids of a draft are the tokens of its target."""

from __future__ import annotations

from pathlib import Path

from fewbit.errors import UsageError
from fewbit.tokens.identity import vocabulary
from fewbit.tokens.tokenizer import Tokenizer

_SHOWN = 3
"""Differing tokens that an error names."""


def require_same_tokens(draft: Path, ours: Tokenizer, target: Path, theirs: Tokenizer) -> None:
    """Check that every id that both know is the same token in both.

    Rows of a model beyond its tokenizer's ids are padding: no text has them.

    Args:
        draft: where the draft lies, for the error.
        ours: its tokenizer.
        target: where the target lies.
        theirs: its tokenizer.

    Raises:
        UsageError: some differ; the message has the first.
    """
    drafted, wanted = vocabulary(ours), vocabulary(theirs)
    differing = [i for i in sorted(drafted.keys() & wanted.keys()) if drafted[i] != wanted[i]]
    if not differing:
        return
    shown = "; ".join(
        f"token {i} is {drafted[i]!r} in the draft and {wanted[i]!r} in the target"
        for i in differing[:_SHOWN]
    )
    raise UsageError(
        f"{draft} cannot draft for {target}: {len(differing):,} of their tokens differ ({shown}); "
        "use a draft of the target's family."
    )
