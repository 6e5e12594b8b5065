"""Documents: the text that every CPython carries, or a file of one's own.

The default text needs no download: the topics of `pydoc` for prose and the modules of the standard
library for code. A document's own SHA-256 decides which of two halves it belongs to, and one that
largely repeats another is left out (pydoc topics contain each other), so what calibrates never
evaluates and documents are fit to be the units over which intervals are taken.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fewbit.calibrate.shingles import Known, shingles
from fewbit.errors import BadFileError, MissingError
from fewbit.tokens.tokenizer import clean_text

MINIMUM_CHARACTERS = 2600
"""Shorter topics and modules are left out of the default text: they would not fill a window of 512
tokens at the four to five characters per token of prose."""

MAXIMUM_CHARACTERS = 8000
"""Of a longer topic or module the beginning is taken: three windows or so, and no more to compare
with other documents than that."""

PIECE_CHARACTERS = 2600
"""Blocks of a plain text file are joined until they have this many characters."""

LARGEST_FILE = 1 << 29
"""Bytes of a text, at most: it is held in memory, as bytes and as characters."""

_CHUNK = 1 << 24
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


class Half(Enum):
    """The two disjoint halves of the default text."""

    EVALUATION = 0
    CALIBRATION = 1


@dataclass(frozen=True)
class Document:
    """A text that is measured as one unit; `sha256` is of its UTF-8 bytes, hexadecimal."""

    name: str
    text: str
    sha256: str


@dataclass(frozen=True)
class Documents:
    """Documents in a fixed order; `sha256` is of their hashes in that order, hexadecimal."""

    name: str
    documents: tuple[Document, ...]
    sha256: str


def document(name: str, text: str) -> Document:
    """Return the text with its hash; half of a surrogate pair becomes U+FFFD, as tokenizers do."""
    clean = clean_text(text)
    return Document(name, clean, hashlib.sha256(clean.encode()).hexdigest())


def collect(name: str, documents: Iterable[Document]) -> Documents:
    """Return documents as one text with its hash."""
    found = tuple(documents)
    digest = hashlib.sha256("".join(d.sha256 for d in found).encode()).hexdigest()
    return Documents(name, found, digest)


def default_text(half: Half) -> Documents:
    """Return one half of the text that this Python carries.

    Prose and code alternate while both last, each in the order of its hashes, so a prefix of the
    documents is a fair sample of them. The same Python version gives the same text.

    Raises:
        MissingError: this Python was installed without its library's sources.
    """
    halves = _halves()[: half.value + 1]
    if not halves[-1]:
        raise MissingError(
            "this Python carries no pydoc topics and library sources; give a text with --text."
        )
    kept = _distinct(halves)[-1]
    return collect(default_name(half), kept)


def default_name(half: Half) -> str:
    """Return the name of one half of the default text; it tells the Python it comes from."""
    version = ".".join(map(str, sys.version_info[:3]))
    return f"CPython {version} topics and library, {half.name.lower()} half"


def evaluation_text(path: Path | None) -> Documents:
    """Return a file's documents, or the evaluation half of the default text; raises as either."""
    return default_text(Half.EVALUATION) if path is None else read_text(path)


def read_text(path: Path) -> Documents:
    """Return a file's documents.

    A `.jsonl` file has one JSON object a line whose "text" is a document. Any other file is plain
    text: its blocks between blank lines are joined in order until they have `PIECE_CHARACTERS`,
    and each such piece is a document. Neighbouring pieces of one text resemble each other, so for
    honest intervals over several texts use `.jsonl`.

    Raises:
        MissingError, BadFileError: as `read_file`; also not JSON lines, or without any text.
    """
    text = read_file(path)
    parts = _json_texts(path, text) if path.suffix == ".jsonl" else _pieces(text)
    found = [document(f"{path.name}#{i + 1}", part) for i, part in enumerate(parts)]
    if not found:
        raise BadFileError(f"text '{path}' contains no text; give a file with some.")
    return collect(path.name, found)


def read_file(path: Path) -> str:
    """Return the text of a UTF-8 file, without the mark of byte order that some editors begin with.

    Raises:
        MissingError: there is no such file.
        BadFileError: it is not UTF-8, or larger than `LARGEST_FILE`.
    """
    try:
        return _content(path).decode("utf-8-sig")
    except OSError as error:
        raise MissingError(
            f"text '{path}' cannot be read ({error.strerror}); give a file of UTF-8 text."
        ) from error
    except UnicodeDecodeError as error:
        raise BadFileError(
            f"text '{path}' is not UTF-8 (byte {error.start}); convert it to UTF-8 first."
        ) from error


def _content(path: Path) -> bytes:
    """Return the bytes of a file or a pipe."""
    chunks: list[bytes] = []
    left = LARGEST_FILE + 1
    with path.open("rb") as file:
        while left and (chunk := file.read(min(left, _CHUNK))):
            chunks.append(chunk)
            left -= len(chunk)
    if not left:
        raise BadFileError(
            f"text '{path}' has more than {LARGEST_FILE >> 20} MiB, which are held in memory; "
            "give a part of it."
        )
    return b"".join(chunks)


def json_lines(path: Path, text: str) -> Iterator[tuple[Any, str]]:
    """Yield the value of each line of JSON that is not blank, and what the line is called.

    Lines end as JSON lines do: other line ends of Unicode (U+2028, say) may stand in a string.

    Raises:
        BadFileError: a line is not JSON.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"text '{path}' line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadFileError(f"{where} is not JSON; write one object a line.") from error
        yield value, where


def _topics() -> Iterator[Document]:
    from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte, wanted here only

    return (document(f"pydoc:{name}", text[:MAXIMUM_CHARACTERS]) for name, text in topics.items())


def _modules() -> Iterator[Document]:
    """Top-level modules only: tests and packages inside would drown them in look-alikes."""
    for path in Path(sysconfig.get_path("stdlib")).glob("*.py"):
        text = path.read_bytes().decode(errors="replace")
        yield document(f"lib:{path.name}", text[:MAXIMUM_CHARACTERS])


def _halves() -> list[list[Document]]:
    """Return both halves; prose and code alternate, each in the order of its hashes."""
    long = [
        [d for d in kind if len(d.text) >= MINIMUM_CHARACTERS] for kind in (_topics(), _modules())
    ]
    ordered = [sorted(kind, key=lambda d: d.sha256) for kind in long]
    mine = [[[d for d in kind if _half_of(d) is half] for kind in ordered] for half in Half]
    return [[d for pair in zip_longest(*kinds) for d in pair if d is not None] for kinds in mine]


def _half_of(document: Document) -> Half:
    return Half(int(document.sha256[:2], 16) % 2)


def _distinct(halves: list[list[Document]]) -> list[list[Document]]:
    """Leave out every document that largely repeats an earlier one, of its own half or another."""
    known = Known()
    return [[d for d in half if known.admit(shingles(d.text))] for half in halves]


def _json_texts(path: Path, text: str) -> list[str]:
    found = []
    for entry, where in json_lines(path, text):
        if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
            raise BadFileError(
                f'{where} has no string under "text"; write lines such as {{"text": "..."}}.'
            )
        if entry["text"].strip():
            found.append(entry["text"])
    return found


def _pieces(text: str) -> list[str]:
    """Cut a text at blank lines; a line of white space alone is blank."""
    text = text.replace("\r\n", "\n")
    pieces: list[str] = []
    begun = 0
    for blank in _BLANK_LINES.finditer(text):
        if blank.start() - begun >= PIECE_CHARACTERS:
            pieces.append(text[begun : blank.start()])
            begun = blank.end()
    return [piece for piece in (*pieces, text[begun:]) if piece.strip()]
