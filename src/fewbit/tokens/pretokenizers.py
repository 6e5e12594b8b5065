"""How each family of byte-level BPE cuts text into words before merging.

Rules go by the names that GGUF's `tokenizer.ggml.pre` gives them. The expressions are facts of the
models' own tokenizer.json files; a vocabulary used with another family's cut gives plausible but
wrong ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"

LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + _SPACES
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
)


@dataclass(frozen=True)
class WordRule:
    """One family's cut: the expressions are applied in turn, each to the pieces of the last."""

    expressions: tuple[str, ...]
    composes: bool = False
    """Text is brought to Unicode's composed form (NFC) first."""
    whole_words: bool = False
    """A word that is itself a token is taken without merging (`ignore_merges`)."""
    adds_bos: bool = False
    """BOS is put first where the file does not say."""

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Return the cut for the tokenizers library, ending in the byte alphabet."""
        cuts: Sequence[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(expression), behavior="isolated")
            for expression in self.expressions
        ]
        alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, alphabet])

    def normalizer(self) -> normalizers.Normalizer | None:
        """Return the normalizer, or None."""
        return normalizers.NFC() if self.composes else None


_SINGLE_DIGITS = WordRule((r"\p{N}", GPT2))
_LLAMA3 = WordRule((LLAMA3,), whole_words=True, adds_bos=True)
_GPT2 = WordRule((GPT2,))

WORD_RULES: dict[str, WordRule] = {
    "default": WordRule((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": WordRule((QWEN2,), composes=True),
    "qwen35": WordRule((QWEN35,), composes=True),
    "falcon": WordRule((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")),
    "tekken": WordRule((TEKKEN,), whole_words=True, adds_bos=True),
}
"""`default` is what llama.cpp assumes for files that name no cut."""


def expressions(part: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the expressions that a pre-tokenizer of the tokenizers library cuts by, in turn."""
    if part is None:
        return ()
    match part.get("type"):
        case "Sequence":
            return tuple(e for step in part["pretokenizers"] for e in expressions(step))
        case "Split" if part.get("behavior") == "Isolated" and not part.get("invert"):
            pattern = part.get("pattern") or {}
            return (pattern.get("Regex", "?"),)
        case "Digits" if part.get("individual_digits"):
            return (r"\p{N}",)
        case "ByteLevel" if not part.get("add_prefix_space"):
            return (GPT2,) if part.get("use_regex", True) else ()
    return (str(part.get("type")),)
