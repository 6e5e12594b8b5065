"""Text from token ids one at a time, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol


class _Decodes(Protocol):
    @property
    def strips_leading_space(self) -> bool: ...

    def visible_bytes(self, token: int, *, skip_special: bool) -> bytes: ...

    def decode_bytes(self, ids: Sequence[int], *, skip_special: bool = False) -> bytes: ...


class StreamDecoder:
    """Decodes incrementally: the pieces of `push` and `finish` together are the whole decode.

    Bytes of an incomplete character are held back until it is complete or known to be invalid;
    invalid bytes become U+FFFD, as `Tokenizer.decode` does it.
    """

    def __init__(
        self, tokenizer: _Decodes, *, skip_special: bool = True, after: Sequence[int] = ()
    ) -> None:
        """Start a stream.

        Args:
            tokenizer: what the ids belong to.
            skip_special: leave special tokens out of the text.
            after: ids that come before the stream (a prompt); where they have text, a leading
                space of the stream is kept, since it separates two words.
        """
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.strips_leading_space and not tokenizer.decode_bytes(
            after, skip_special=skip_special
        )

    def push(self, token: int) -> str:
        """Return the text that became certain with this token; may be empty.

        Raises:
            RequestError: the id has no token.
        """
        data = self._tokenizer.visible_bytes(token, skip_special=self._skip_special)
        if data and self._at_start:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def finish(self) -> str:
        """Return what was held back: U+FFFD where a character stayed incomplete, else nothing."""
        return self._utf8.decode(b"", final=True)
