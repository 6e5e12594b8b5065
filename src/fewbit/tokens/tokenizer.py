"""The tokenizer: text to token ids and back, over the `tokenizers` library.

Special tokens in a text are text unless `parse_special` asks for more: a prompt from a user cannot
inject a turn or an end. A rendered chat template is encoded with `add_special=False,
parse_special=True`, since it writes the special tokens, the first one included, itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import tokenizers

from fewbit.errors import BadFileError, RequestError
from fewbit.tokens.guard import guarded
from fewbit.tokens.pieces import PieceRule
from fewbit.tokens.stream import StreamDecoder

MAX_IDS = 1 << 24
"""Bound of token ids; the largest vocabularies in use have under 2^19."""


@dataclass(frozen=True)
class SpecialTokens:
    """The ids with a role; None where the source names none."""

    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    padding: int | None = None
    end_of_generation: frozenset[int] = frozenset()
    """Every id after which generation stops; holds `eos`."""


@dataclass(frozen=True)
class Behaviour:
    """What a tokenizer does beyond its vocabulary, and where that was read."""

    source: str
    pieces: PieceRule
    pre_tokenizer: str
    special: SpecialTokens
    prefix: tuple[int, ...] = ()
    """Ids put before a text when special tokens are asked for: BOS, mostly."""
    suffix: tuple[int, ...] = ()
    hazards: tuple[str, ...] = field(default=())
    """Sentences about what the source got wrong or left out."""


class Tokenizer:
    """One tokenizer; build it with `from_hugging_face` or `from_gguf`. Safe to share by threads."""

    def __init__(
        self, backend: tokenizers.Tokenizer, behaviour: Behaviour, *, size: int | None = None
    ) -> None:
        """Take over `backend`, whose settings of truncation and padding must be off.

        Args:
            backend: what cuts and merges.
            behaviour: the rest.
            size: the highest id plus one where the caller knows it; asking the backend copies the
                whole vocabulary.

        Raises:
            BadFileError: an id of the behaviour has no token, or ids run past MAX_IDS.
        """
        self.backend = backend
        self.behaviour = behaviour
        self._lock = threading.Lock()
        self._bytes: dict[int, bytes] = {}
        added = backend.get_added_tokens_decoder()
        self._added = {token: entry.content for token, entry in added.items()}
        self._special = frozenset(token for token, entry in added.items() if entry.special)
        self._size = _highest_id(backend) + 1 if size is None else size
        self._check_ids()

    def _check_ids(self) -> None:
        if not 0 < self._size <= MAX_IDS:
            raise BadFileError(
                f"{self.behaviour.source} has token ids up to {self._size - 1:,}; "
                f"a vocabulary has 1 to {MAX_IDS:,} of them."
            )
        special = self.behaviour.special
        roles = (special.bos, special.eos, special.unknown, special.padding)
        used = {token for token in roles if token is not None} | special.end_of_generation
        for token in sorted(used | {*self.behaviour.prefix, *self.behaviour.suffix}):
            if self.backend.id_to_token(token) is None:
                raise BadFileError(
                    f"{self.behaviour.source} gives a role to token id {token:,}, which is beyond "
                    f"its vocabulary of {self._size:,}; the file is damaged or mismatched."
                )

    @property
    def vocabulary_size(self) -> int:
        """The highest token id plus one. A model may have more rows: mask its logits past here."""
        return self._size

    @property
    def special(self) -> SpecialTokens:
        """The ids with a role."""
        return self.behaviour.special

    @property
    def special_ids(self) -> frozenset[int]:
        """Every id that `decode(skip_special=True)` leaves out."""
        return self._special

    @property
    def added_tokens(self) -> dict[int, str]:
        """Special and user-defined tokens: id to text."""
        return dict(self._added)

    @property
    def strips_leading_space(self) -> bool:
        """True where a whole decode drops one space at its very start."""
        return self.behaviour.pieces.strips_leading_space

    def encode(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: any text. Bytes are read as UTF-8; each maximal invalid run becomes U+FFFD (as
                bytes.decode with errors="replace"), and so does each unpaired surrogate of a str.
            add_special: put `prefix` and `suffix` (BOS, EOS) around it, as the source says.
            parse_special: read the names of special tokens inside the text as those tokens. Tokens
                that are added but not special are always read.

        Raises:
            RequestError: the library failed on this text.
        """
        clean = clean_text(text)
        with guarded(RequestError, "The text could not be tokenized"), self._lock:
            self.backend.encode_special_tokens = not parse_special
            ids: list[int] = self.backend.encode(clean, add_special_tokens=False).ids
        if not add_special:
            return ids
        return [*self.behaviour.prefix, *ids, *self.behaviour.suffix]

    def token_text(self, token: int) -> str:
        """Return a token as the vocabulary writes it.

        Raises:
            RequestError: the id has no token.
        """
        text = self.backend.id_to_token(token) if 0 <= token < self._size else None
        if text is None:
            raise RequestError(
                f"Token id {token} has no token in this vocabulary of {self._size:,}; "
                "ids of a model's padding rows must be masked before sampling."
            )
        return text

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for; raises as `token_text`."""
        known = self._bytes.get(token)
        if known is not None:
            return known
        text = self.token_text(token)
        pieces = self.behaviour.pieces
        data = pieces.added_token(text) if token in self._added else pieces.model_token(text)
        self._bytes[token] = data
        return data

    def visible_bytes(self, token: int, *, skip_special: bool) -> bytes:
        """Return `token_bytes`, or nothing for a special token that is to be left out."""
        if skip_special and token in self._special:
            return b""
        return self.token_bytes(token)

    def decode_bytes(self, ids: Sequence[int], *, skip_special: bool = False) -> bytes:
        """Return the exact bytes of a sequence, which need not be valid UTF-8.

        Raises:
            RequestError: an id has no token.
        """
        data = b"".join(self.visible_bytes(token, skip_special=skip_special) for token in ids)
        return data.removeprefix(b" ") if self.strips_leading_space else data

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Return the text of a sequence; invalid bytes become U+FFFD; raises as `decode_bytes`."""
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", "replace")

    def stream(self, *, skip_special: bool = True, after: Sequence[int] = ()) -> StreamDecoder:
        """Return an incremental decoder; see `StreamDecoder`."""
        return StreamDecoder(self, skip_special=skip_special, after=after)

    @cached_property
    def special_texts(self) -> dict[str, str]:
        """Names and texts of the tokens with a role, as chat templates expect them."""
        roles = {
            "bos_token": self.special.bos,
            "eos_token": self.special.eos,
            "unk_token": self.special.unknown,
            "pad_token": self.special.padding,
        }
        return {name: self.token_text(token) for name, token in roles.items() if token is not None}


def _highest_id(backend: tokenizers.Tokenizer) -> int:
    return max(backend.get_vocab(with_added_tokens=True).values(), default=-1)


def clean_text(text: str | bytes) -> str:
    """Return `text` as valid Unicode; see `Tokenizer.encode` for what replaces what is not.

    A surrogate pair written as two characters becomes the character it names.
    """
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def named_ends(names: Iterable[tuple[int, str]]) -> frozenset[int]:
    """Return the ids, among special tokens, whose text says that a turn or a text ends.

    Files often name one end of several (an instruct model's `eos` may be either its end of turn or
    its end of text); stopping at the others too is what every runtime does.
    """
    return frozenset(token for token, text in names if text in END_TEXTS)


END_TEXTS = frozenset(
    {
        "</s>",
        "<eos>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<EOT>",
        "<|end▁of▁sentence|>",
        "<｜end▁of▁sentence｜>",
    }
)
