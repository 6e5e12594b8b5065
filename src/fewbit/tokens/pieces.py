"""From the text of a token to the bytes it stands for.

Two alphabets are in use. Byte-level BPE writes each of the 256 bytes as one printable character
(GPT-2's table). SentencePiece writes text as it is, a space as U+2581, and a byte that belongs to
no piece as `<0xHH>`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Protocol

SPACE = "▁"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def is_byte_token(text: str) -> bool:
    """Return whether a SentencePiece token stands for one byte."""
    return _BYTE_TOKEN.fullmatch(text) is not None


class PieceRule(Protocol):
    """How a tokenizer's tokens become bytes."""

    @property
    def kind(self) -> str:
        """What the alphabet is called in facts."""
        ...

    @property
    def strips_leading_space(self) -> bool:
        """True where decoding a whole sequence drops one space at its very start."""
        ...

    def model_token(self, text: str) -> bytes:
        """Return the bytes of a token of the model's vocabulary."""
        ...

    def added_token(self, text: str) -> bytes:
        """Return the bytes of an added (special or user-defined) token."""
        ...


class ByteLevelPieces:
    """GPT-2's alphabet; a token with a character outside it stands for its own UTF-8."""

    kind = "byte-level BPE"
    strips_leading_space = False

    def model_token(self, text: str) -> bytes:
        """Return the bytes that the characters of `text` name."""
        table = byte_of_character()
        try:
            return bytes([table[character] for character in text])
        except KeyError:
            return text.encode()

    def added_token(self, text: str) -> bytes:
        """Added tokens are plain text."""
        return text.encode()


class SentencePieces:
    """SentencePiece's alphabet; added tokens follow the same rule."""

    kind = "SentencePiece BPE"

    def __init__(self, *, strips_leading_space: bool) -> None:
        self.strips_leading_space = strips_leading_space

    def model_token(self, text: str) -> bytes:
        """Return the byte that `<0xHH>` names, or the text with spaces put back."""
        byte = _BYTE_TOKEN.fullmatch(text)
        if byte:
            return bytes([int(byte.group(1), 16)])
        return text.replace(SPACE, " ").encode()

    def added_token(self, text: str) -> bytes:
        """As `model_token`."""
        return self.model_token(text)


@functools.cache
def byte_of_character() -> Mapping[str, int]:
    """Return GPT-2's table of characters that stand for bytes.

    Printable Latin-1 stands for itself, the characters from U+0100 on for the other bytes in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table
