"""Small TOML files that users write: read within bounds, with unknown keys named."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fewbit.errors import BadFileError, MissingError

LARGEST = 1 << 20
"""Bytes of a file that a person writes, at most."""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the table of a TOML file.

    Args:
        path: the file.
        what: what it is called in an error, such as `recipe`.

    Raises:
        MissingError: it cannot be read.
        BadFileError: it is no TOML, no UTF-8, or larger than `LARGEST`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise MissingError(
            f"The {what} {path} cannot be read ({error.strerror}); give a .toml file."
        ) from error
    if len(content) > LARGEST:
        raise BadFileError(
            f"The {what} {path} has more than {LARGEST} bytes; a {what} has at most 1 MiB."
        )
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # of syntax, of UTF-8, of too long a number
        raise BadFileError(f"The {what} {path} is not valid: {error}.") from error


def require_known_keys(where: str, what: str, found: Iterable[str], known: Sequence[str]) -> None:
    """Refuse keys that there are not, each with those it may have been meant for.

    Args:
        where: what begins the message, such as `The recipe fast.toml`.
        what: what the keys belong to, such as `a rule`.
        found: the keys that are there.
        known: those that may be.

    Raises:
        BadFileError: the first that is not known.
    """
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, 2)
            offer = f"did you mean {' or '.join(near)}" if near else f"it has {', '.join(known)}"
            raise BadFileError(f"{where} has the key '{key}', which {what} does not have; {offer}.")
