"""Whether one model can draft for another, and every difference that matters to it."""

from __future__ import annotations

from enum import Enum

from fewbit.records.base import Record
from fewbit.records.tokens import TokenizerRecord

PAIR_VERSION = 1


class PairVerdict(Enum):
    """Whether the draft can be used. The output is the target's in any case."""

    USABLE = "usable"
    MAPPED = "usable with mapping"
    """Its ids are mapped to the target's by the tokens' bytes; what only one of them has is never
    proposed."""
    NOT_USABLE = "not usable"

    @property
    def exit_code(self) -> int:
        """What the command line ends with."""
        return 3 if self is PairVerdict.NOT_USABLE else 0


class Consequence(Enum):
    """What a difference does."""

    NONE = "nothing"
    SLOWER = "fewer accepted"
    MAPPING = "mapping"
    PREVENTS = "not usable"


class PairDifference(Record, frozen=True, kw_only=True):
    """One difference between target and draft."""

    found: str
    """What differs, in one sentence."""
    effect: str
    """What it does, in one sentence or two."""
    consequence: Consequence
    examples: tuple[str, ...] = ()
    """The first ones."""


class PairCheck(Record, frozen=True, kw_only=True):
    """One thing that was compared."""

    name: str
    agrees: str
    """What both have, where nothing differs; empty otherwise."""
    differences: tuple[PairDifference, ...] = ()


class PairModel(Record, frozen=True, kw_only=True):
    """One side of a pair."""

    name: str
    path: str
    rows: int
    """Of the embedding; what the tokenizer does not use is padding and masked."""
    context: int
    template: str | None
    """SHA-256 of the chat template, hexadecimal; None without one."""
    tokenizer: TokenizerRecord


class SharedTokens(Record, frozen=True, kw_only=True):
    """Tokens that both have, by their bytes."""

    count: int
    same_ids: int
    """Those with one id in both."""
    target_only: int
    draft_only: int


class ProbeText(Record, frozen=True, kw_only=True):
    """One text, encoded by both."""

    name: str
    characters: int
    target_tokens: int
    draft_tokens: int
    cut_alike: bool
    """The draft would cut the text into the tokens that it reads of the target's."""
    proposable: float
    """Share of the target's tokens that the draft can propose: no more can be accepted."""


class PairReport(Record, frozen=True, kw_only=True):
    """What `fewbit pair` found."""

    version: int = PAIR_VERSION
    target: PairModel
    draft: PairModel
    shared: SharedTokens
    checks: tuple[PairCheck, ...]
    probes: tuple[ProbeText, ...]
    verdict: PairVerdict
    reasons: tuple[str, ...]

    @property
    def differences(self) -> tuple[PairDifference, ...]:
        """All of them, in the order of the checks."""
        return tuple(d for check in self.checks for d in check.differences)
