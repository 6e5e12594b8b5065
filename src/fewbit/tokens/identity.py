"""Whether two tokenizers are the same: a hash of what decides output, where they cut otherwise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from fewbit.tokens.pieces import SentencePieces
from fewbit.tokens.pretokenizers import expressions
from fewbit.tokens.tokenizer import Tokenizer

PROBE = (
    "Hello, world!  Two spaces,\ttab\n\n\nand lines.\r\n   indented = {'a': [1, 22, 333, 4444]}\n"
    "I'm you're they'LL don't — “quoted” 12,345.678e-9 1234567890\n"
    "naïve café e\u0301 A\u030a \u1112\u1161\u11ab 한국어 日本語テキスト 中文字符，标点。\n"
    "ไทย हिन्दी العربية עברית ½ ² ① Ⅷ 𝔘𝔫𝔦 ﬁ \x00\x7f\n"
    "😀👩\u200d👩\u200d👧🇩🇪 \u00a0nbsp\u200bzero\ufeffbom \ufffd\n"
    "def f(x):\n        return x**2  # comment\n<s></s><|endoftext|><|im_start|>user<end_of_turn>"
)
"""Text that known pre-tokenizers, normalizers and special-token rules cut differently."""


def fingerprint(tokenizer: Tokenizer) -> str:
    """Return a SHA-256 (hexadecimal) over vocabulary, merges, added tokens, roles and behaviour.

    Equal fingerprints mean equal ids for every text, up to rules that only a text other than PROBE
    would show. Where a tokenizer was read from (GGUF or JSON) does not enter.
    """
    digest = hashlib.sha256()
    for part in _parts(tokenizer):
        digest.update(part.encode("utf-8", "surrogatepass"))
        digest.update(b"\xff")
    return digest.hexdigest()


def _parts(tokenizer: Tokenizer) -> Iterable[str]:
    for token, text in sorted(vocabulary(tokenizer).items()):
        yield f"{token} {text}"
    yield from (f"{left} {right}" for left, right in merges(tokenizer))
    yield from (f"added {token} {text}" for token, text in sorted(tokenizer.added_tokens.items()))
    yield f"special {sorted(tokenizer.special_ids)}"
    roles = tokenizer.special
    yield f"roles {roles.bos} {roles.eos}"
    yield f"ends {sorted(roles.end_of_generation)}"
    yield f"{tokenizer.behaviour.pieces.kind} {tokenizer.strips_leading_space}"
    for parse in (False, True):
        yield f"probe {tokenizer.encode(PROBE, parse_special=parse)}"


def vocabulary(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the tokens by id, added ones included."""
    pairs = tokenizer.backend.get_vocab(with_added_tokens=True).items()
    return {token: text for text, token in sorted(pairs)}


@dataclass(frozen=True)
class Cutting:
    """How a tokenizer cuts text, beside the tokens themselves."""

    words: tuple[str, ...]
    """Expressions that cut text into words, applied in turn."""
    normalizer: str
    """As JSON; `null` where text stays as it is."""
    whole_words: bool
    """A word that is itself a token is taken without merging."""
    merges: list[tuple[str, str]]


def cutting(tokenizer: Tokenizer) -> Cutting:
    """Return how a tokenizer cuts text."""
    tree = json.loads(tokenizer.backend.to_str())
    return Cutting(
        words=expressions(tree.get("pre_tokenizer")),
        normalizer=json.dumps(tree.get("normalizer"), sort_keys=True),
        whole_words=bool(tree["model"].get("ignore_merges")),
        merges=_merges(tree["model"]),
    )


def merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Return the merges of a BPE in order, or nothing for another model."""
    return _merges(json.loads(tokenizer.backend.to_str())["model"])


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = model.get("merges", [])
    return [tuple(line) if isinstance(line, list) else tuple(line.split(" ", 1)) for line in lines]


def cut_difference(source: Tokenizer, candidate: Tokenizer) -> str | None:
    """Return where two tokenizers of one vocabulary cut text otherwise, or None where they agree.

    Both cut PROBE, and their merges are compared one by one. Merges that follow from SentencePiece
    scores are compared between files of one kind only: where scores tie, converters differ.
    """
    for parse in (False, True):
        pair = [side.encode(PROBE, parse_special=parse) for side in (source, candidate)]
        if pair[0] != pair[1]:
            return _probe_difference(source, *pair)
    one, other = source.behaviour, candidate.behaviour
    if one.source != other.source and isinstance(one.pieces, SentencePieces):
        return None
    for rank, (ours, theirs) in enumerate(zip_longest(merges(source), merges(candidate))):
        if ours != theirs:
            return (
                f"merge {rank} is {_shown(ours)} in the source, {_shown(theirs)} in the candidate"
            )
    return None


def _probe_difference(source: Tokenizer, ours: list[int], theirs: list[int]) -> str:
    short = min(len(ours), len(theirs))
    at = next((i for i in range(short) if ours[i] != theirs[i]), short)
    before = source.decode(ours[max(0, at - 4) : at])
    return (
        f"the probe text is cut differently at token {at}, behind {before!r}: "
        f"{ours[at : at + 3]} in the source, {theirs[at : at + 3]} in the candidate"
    )


def _shown(merge: tuple[str, str] | None) -> str:
    return "absent" if merge is None else repr(" ".join(merge)[:80])
