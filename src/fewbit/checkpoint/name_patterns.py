"""Regular expressions from a checkpoint's configuration, held to what cannot run for long.

compressed-tensors and GPTQModel name modules by patterns of Python's `re`, which a hostile file
could make exponential. Without a repeated group the time is a polynomial whose degree is the number
of repetitions, so both are bounded.
"""

from __future__ import annotations

import re

from fewbit.errors import UnsupportedError

MAX_LENGTH = 2048
MAX_REPETITIONS = 4
"""`*`, `+` and `{..}` of one pattern; names have under a hundred characters."""

_ESCAPED = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPETITION = re.compile(r"[*+]|\{[0-9, ]*\}")
_REPEATED_GROUP = re.compile(r"\)(?:[*+?]|\{)")
_REFERENCE = re.compile(r"\\[0-9]|\(\?P=|\(\?\(")


def name_pattern(text: str, owner: str) -> re.Pattern[str]:
    """Return a compiled pattern.

    Args:
        text: the pattern.
        owner: what it stands in, for an error.

    Raises:
        UnsupportedError: it is no pattern, or could take too long.
    """
    plain = _ESCAPED.sub("x", text[: MAX_LENGTH + 1])
    problem = ""
    if len(text) > MAX_LENGTH:
        problem = f"longer than {MAX_LENGTH} characters"
    elif _REPEATED_GROUP.search(plain) or _REFERENCE.search(text):
        problem = "with a repeated group or a back reference"
    elif len(_REPETITION.findall(plain)) > MAX_REPETITIONS:
        problem = f"with more than {MAX_REPETITIONS} repetitions"
    if problem:
        raise UnsupportedError(
            f"{owner} names modules by {text[:64]!a}, a pattern {problem}, which could run "
            "for ever; write the modules' names out."
        )
    try:
        return re.compile(text)
    except re.error as error:
        raise UnsupportedError(
            f"{owner} names modules by {text[:64]!a}, which is no regular expression "
            f"({error}); correct it."
        ) from None
