"""How many tokens to draft for each sequence of a batch: as many as are expected to pay.

With S_j the chance that a sequence's first j drafted tokens all stand, a draft of K tokens brings
1 + S_1 + ... + S_K tokens; it costs the drafting and the rows it adds to the step. The lengths with
the most tokens per second over the whole batch are taken (the speed model of Leviathan et al.,
ICML 2023, with measured costs in place of its constant ones, and jointly over a batch).

Lengths are settled before the draft draws anything, and never shortened by what it drew. Leaving a
token out because its q, or any score that depends on the token, looks poor would keep likely tokens
and drop unlikely ones: what is then verified is no longer distributed as q, and the acceptance rule
would correct for the wrong distribution. The output would be biased.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LEAST_GAIN = 1.05
"""Drafts must promise this much more than none: less is lost in the noise of what was measured,
and, among several sequences, when some end before others and the batch becomes smaller."""

STAY = 1.01
"""Lengths are kept while no others promise this much more than they do."""

DEAR = 0.01
"""From this share of a step on, a draft's token is no longer next to nothing."""


@dataclass(frozen=True)
class DraftPrices:
    """Seconds of a draft that is asked by itself."""

    call: float
    """Of asking it at all."""
    token: Sequence[float]
    """Of drafting one token for 0, 1, 2, ... sequences at once."""


@dataclass(frozen=True)
class Prices:
    """Seconds of a step by what is drafted in it; sequences are numbered as in the batch."""

    step: Sequence[float]
    """Of the target's step with 0, 1, 2, ... drafted rows, all sequences' rows included."""
    row: Sequence[float]
    """What a drafted row of each sequence adds to that: its look at the keys before it."""
    start: Sequence[float]
    """What each sequence's first drafted token costs beforehand: tokens that its draft reads."""
    part: Sequence[int]
    """Which of the drafts each sequence would ask."""
    drafts: Sequence[DraftPrices]

    @property
    def dearest(self) -> float:
        """The most that a token of the drafts in question costs."""
        return max((max(self.drafts[part].token) for part in set(self.part)), default=0.0)

    def of(self, lengths: Sequence[int]) -> float:
        """Return the seconds of drafting these lengths and of the step."""
        keys = sum(row * n for row, n in zip(self.row, lengths, strict=True))
        return self.step[sum(lengths)] + keys + self.drafting(lengths)

    def drafting(self, lengths: Sequence[int]) -> float:
        """Return the part that is drafting."""
        starts = sum(start for start, n in zip(self.start, lengths, strict=True) if n)
        asked: dict[int, list[int]] = {}
        for part, length in zip(self.part, lengths, strict=True):
            if length:
                asked.setdefault(part, []).append(length)
        return starts + sum(self._asking(part, found) for part, found in asked.items())

    def _asking(self, part: int, lengths: Sequence[int]) -> float:
        """Return the seconds of a draft's call for these lengths, none of them 0."""
        draft = self.drafts[part]
        tokens = (draft.token[sum(n > j for n in lengths)] for j in range(max(lengths)))
        return draft.call + sum(tokens)


@dataclass(frozen=True)
class Choice:
    """Draft lengths for a batch, and what they promise."""

    lengths: tuple[int, ...]
    tokens: float
    """Expected of the step, of all sequences that decode."""
    seconds: float
    """Expected of drafting and the step."""
    gain: float
    """Tokens per second over those without a draft."""


def best_choice(
    curves: Sequence[Sequence[float]],
    prices: Prices,
    *,
    decoding: int,
    before: Sequence[int] = (),
) -> Choice:
    """Return the lengths with the most expected tokens per second; all 0 where no draft pays.

    Args:
        curves: S_1, S_2, ... of each sequence that may have a draft, as long as its draft may be.
        prices: of a step.
        decoding: sequences that decode, those that may have no draft included.
        before: lengths of the last step, kept where others promise hardly more.
    """
    none = promise([0] * len(curves), curves, prices, decoding)
    paths = (
        _path(open_to, prices, decoding, bound)
        for open_to in _open(curves, prices)
        for bound in _bounds(open_to, prices)
    )
    found = max(paths, key=lambda choice: choice.gain, default=none)
    if any(before) and len(before) == len(curves):
        kept = [min(length, len(curve)) for length, curve in zip(before, curves, strict=True)]
        stay = promise(kept, curves, prices, decoding)
        if any(kept) and stay.gain >= LEAST_GAIN and found.gain < STAY * stay.gain:
            return stay
    return found if found.gain >= LEAST_GAIN else none


def least_loss(
    curves: Sequence[Sequence[float]], prices: Prices, *, decoding: int, turn: int
) -> Choice | None:
    """Return the draft to try where none is expected to pay: one sequence's, the least bad.

    None where no sequence may have a draft. Sequences of which as much is expected take turns: the
    draft may have nothing for one and much for another.
    """
    able = [i for i, curve in enumerate(curves) if curve]
    if not able:
        return None
    first = turn % len(able)
    chosen = max(able[first:] + able[:first], key=lambda i: round(curves[i][0], 2))
    options = []
    for length in range(1, len(curves[chosen]) + 1):
        lengths = [length if i == chosen else 0 for i in range(len(curves))]
        options.append(promise(lengths, curves, prices, decoding))
    return max(options, key=lambda choice: choice.gain)


def promise(
    lengths: Sequence[int], curves: Sequence[Sequence[float]], prices: Prices, decoding: int
) -> Choice:
    """Return what given lengths promise."""
    drafted = sum(sum(curve[:n]) for curve, n in zip(curves, lengths, strict=True))
    tokens, seconds = decoding + drafted, prices.of(lengths)
    return Choice(tuple(lengths), tokens, seconds, tokens / seconds * prices.step[0] / decoding)


def describe_choice(rates: Sequence[float], length: int, choice: Choice, prices: Prices) -> str:
    """Return the reason of a sequence's new length, for its record.

    Args:
        rates: the sequence's estimated acceptance by position.
        length: for the sequence.
        choice: what was chosen for the batch.
        prices: that it was chosen at.
    """
    shown = " ".join(f"{rate:.0%}" for rate in rates[: max(length, 2)])
    seen = f"drafted tokens are expected to be accepted at {shown}"
    if length == 0:
        return f"{seen}, so no draft pays"
    drafting = prices.drafting(choice.lengths)
    step = (choice.seconds - drafting) / prices.step[0]
    return (
        f"{seen}; the step costs {step:.2f} and drafting {drafting / prices.step[0]:.2f} of a "
        f"plain one, so {length} pay best ({choice.gain:.2f} x)"
    )


def describe_hopeless(prices: Prices) -> str:
    """Return why no draft is even tried."""
    plain = prices.step[0]
    row = (prices.step[1] + prices.row[0]) / plain - 1
    drafting = prices.drafting((1,) + (0,) * (len(prices.start) - 1)) / plain
    return (
        f"a drafted row adds {row:.2f} of a step and drafting its token takes {drafting:.2f}, so "
        "no draft pays, were it right nine times of ten"
    )


def _open(curves: Sequence[Sequence[float]], prices: Prices) -> Iterator[Sequence[Sequence[float]]]:
    """Yield which sequences to look at together: all, and those of each draft alone.

    A dear draft may pay for nobody where a cheap one pays for some.
    """
    yield curves
    parts = set(prices.part)
    for part in sorted(parts) if len(parts) > 1 else ():
        yield [curve if own == part else () for curve, own in zip(curves, prices.part, strict=True)]


def _bounds(curves: Sequence[Sequence[float]], prices: Prices) -> list[int]:
    """Return the bounds on the length to look under: 1, 2, 3, 4, 6, 8, 12, 16, ...

    They matter because a draft's n-th token costs a step of the draft whether one sequence wants it
    or all do. With one sequence, or a draft that costs next to nothing, one bound finds the best.
    """
    longest = max((len(curve) for curve in curves), default=0)
    if len(curves) == 1 or prices.dearest < DEAR * prices.step[0]:
        return [longest] if longest else []
    found = {b for i in range(6) for b in (1 << i, 3 << i) if b < longest}
    return sorted({*found, longest} - {0})


def _path(curves: Sequence[Sequence[float]], prices: Prices, decoding: int, bound: int) -> Choice:
    """Return the best choice of lengths up to `bound`.

    Tokens are added in the order of their chance to stand, so that for every number of rows the
    most promising ones are looked at.
    """
    order = sorted(
        (-chance, j, i) for i, curve in enumerate(curves) for j, chance in enumerate(curve[:bound])
    )
    tokens, seconds = float(decoding), prices.step[0]
    best, taken = tokens / prices.step[0], 0
    counts = [[0] * bound for _ in prices.drafts]
    for rows, (chance, j, i) in enumerate(order, start=1):
        draft, drafting = prices.drafts[prices.part[i]], counts[prices.part[i]]
        tokens -= chance
        seconds += prices.step[rows] - prices.step[rows - 1] + prices.row[i]
        seconds += draft.token[drafting[j] + 1] - draft.token[drafting[j]]
        if j == 0:
            seconds += prices.start[i] + (0.0 if drafting[0] else draft.call)
        drafting[j] += 1
        if tokens > best * seconds:
            best, taken = tokens / seconds, rows
    lengths = [0] * len(curves)
    for _, _, i in order[:taken]:
        lengths[i] += 1
    return promise(lengths, curves, prices, decoding)
