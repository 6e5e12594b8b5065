"""JSON from strangers: bounded in size and nodes, no duplicate keys, no NaN."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from fewbit.checkpoint.mapped import quoted, unreadable
from fewbit.errors import BadFileError

MAX_NODES = 1 << 19
"""Values of one document: an index of 140,000 tensors fits, and a header of 50,000. So many values
take a quarter of a second and up to 75 MB while they are read."""

_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(text: bytes, name: str) -> Any:
    """Return the value of a JSON text.

    Args:
        text: UTF-8.
        name: what the text is called in an error.

    Raises:
        BadFileError: it is not JSON, nests too deeply, has too many values, a duplicate key, a
            number that JSON does not have, or an escape that is no character.
    """
    nodes = text.count(b",") + text.count(b"[") + text.count(b"{")
    if nodes > MAX_NODES:
        raise BadFileError(
            f"{name} holds more than {MAX_NODES} values, more than any model needs; "
            "get it again from its publisher."
        )
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
        if _HALF_A_PAIR.search(text):  # of a whole pair both are there, and this is no error
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        problem = "an escape is half of a pair, which is no character"
    except RecursionError:
        problem = "it nests too deeply"
    except ValueError as error:
        problem = str(error)
    else:
        return value
    raise BadFileError(
        f"{name} is not sound JSON ({problem}); get it again from its publisher."
    ) from None


def parse_object(text: bytes, name: str) -> dict[str, Any]:
    """Return the value of a JSON text that must be an object; raises as `parse_json`."""
    value = parse_json(text, name)
    if not isinstance(value, dict):
        raise BadFileError(
            f"{name} holds a {type(value).__name__} where an object is expected; "
            "get it again from its publisher."
        )
    return value


def read_bounded(path: Path, largest: int) -> bytes:
    """Return the content of a small file.

    Raises:
        BadFileError: it has more than `largest` bytes, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            # A read allocates what it is asked for, so ask for no more than there seems to be.
            content = file.read(min(os.fstat(file.fileno()).st_size, largest) + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(content) > largest:
        raise BadFileError(
            f"{path} has more than {largest} bytes, more than any model needs; "
            "get it again from its publisher."
        )
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {quoted(double)} appears twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
