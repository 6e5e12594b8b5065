"""What a generated text must be, as a request says it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class GrammarKind(Enum):
    """In which language a grammar is written."""

    JSON_SCHEMA = "JSON schema"
    LARK = "Lark grammar"
    REGEX = "regular expression"


@dataclass(frozen=True)
class Grammar:
    """What the generated text must be, from its first token to the model's end of text.

    `after` is a token after which that begins, such as the end of a model's thoughts; until it
    comes, anything may. None where it holds from the start.
    """

    kind: GrammarKind
    text: str
    after: int | None = None
