"""Compared predictions summed up: the slices that are judged, and what a reader may look up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from fewbit.evaluate.arms import Role
from fewbit.evaluate.gating.bootstrap import exponential, proportion_interval
from fewbit.evaluate.language.divergence import Comparison
from fewbit.evaluate.language.passages import CHAT, DOMAINS, LANGUAGES
from fewbit.evaluate.language.positions import Figures, Mask, Positions, Values
from fewbit.evaluate.language.protocol import Mark
from fewbit.records.drawn import Band, Curve
from fewbit.records.interval import Interval
from fewbit.records.language import (
    Divergence,
    DocumentScore,
    FirstChoices,
    HistogramBin,
    LanguageDetails,
    Part,
    Perplexity,
    TextFacts,
)
from fewbit.records.measurement import Measure, Slice

AXIS = "language"

TIE_LEAD = 0.1
"""Nats by which a source must prefer its first token, where no floor says what rounding moves."""

TIE_QUANTILE = 0.95
"""Share of the floor's own shifts of the lead that a lead must exceed not to be a near-tie."""

_EDGES = (0.0, *(10.0 ** (half / 2) for half in range(-12, 3)))
"""Half decades from 1e-6 to 10 nats, with all that is smaller in the first bin."""

_CHANCES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)

_BUILT_IN = {CHAT: "in conversations", LANGUAGES: "in other languages"}

_PROTOCOL = {
    Mark.END_OF_TURN: "at the end of turns",
    Mark.JSON: "at the punctuation of JSON",
    Mark.TOOL_CALL: "where a tool call opens",
}


@dataclass(frozen=True, eq=False)
class Measured:
    """All that was compared, with the main text told apart from the built-in domains."""

    positions: Positions
    level: float

    @cached_property
    def text(self) -> Mask:
        """The predictions of the main text that count."""
        names = [domain for domain in self.positions.domains if domain not in _BUILT_IN]
        return self.positions.of_domains(names)

    @cached_property
    def tie_lead(self) -> float:
        """Nats by which the source must prefer its first token for a decided choice."""
        p = self.positions
        if p.floor is None:
            return TIE_LEAD
        shifts = np.abs(p.floor.candidate_lead - p.floor.lead)[self.text]
        return float(np.quantile(shifts[np.isfinite(shifts)], TIE_QUANTILE)) if len(shifts) else 0.0

    @cached_property
    def decided(self) -> Mask:
        """Where the source's first choice is no near-tie."""
        return np.asarray(self.positions.candidate.lead > self.tie_lead)

    @cached_property
    def parts(self) -> tuple[tuple[str, str, Mask], ...]:
        """Name, words and predictions of each domain and kind of protocol token there is."""
        p = self.positions
        domains = [
            (domain, _BUILT_IN.get(domain, f"in {domain}"), p.of_domains([domain]))
            for domain in dict.fromkeys(p.domains)
        ]
        kinds = [(kind.value, words, p.marks[kind]) for kind, words in _PROTOCOL.items()]
        return tuple(part for part in (*domains, *kinds) if part[2].any())

    def figures(self, mask: Mask) -> Figures:
        """Return some of the predictions, ready to be summed up."""
        return Figures(self.positions, mask, self.level)


def possible_slices() -> Mapping[str, Measure]:
    """Return every slice that a text can have, by name."""
    means = ["kl", "kl-reverse", "first-choice"]
    means += [f"kl/{name}" for name in (*DOMAINS, *(kind.value for kind in Mark))]
    ratios = ["perplexity", *(f"perplexity/{domain}" for domain in DOMAINS)]
    return {
        **{f"{AXIS}/{name}": Measure.MEAN for name in means},
        **{f"{AXIS}/{name}": Measure.PERPLEXITY for name in ratios},
    }


def slices(m: Measured) -> tuple[Slice, ...]:
    """Return what may be judged; divergences and losses are of nats a token."""
    p = m.positions
    found = [
        _slice(m, m.text, "kl", "KL divergence of the candidate from the source", _DIVERGENCE),
        _slice(m, m.text, "kl-reverse", "KL divergence of the source from the candidate", _REVERSE),
        _slice(m, m.text, "perplexity", "perplexity over the source's", _PERPLEXITY),
        _slice(m, m.text, "first-choice", "other first choices, near-ties apart", _choices(m)),
    ]
    for name, words, mask in m.parts:
        found.append(_slice(m, mask, f"kl/{name}", f"KL divergence {words}", _DIVERGENCE))
        if name in p.domains:
            title = f"perplexity over the source's {words}"
            found.append(_slice(m, mask, f"perplexity/{name}", title, _PERPLEXITY))
    return tuple(found)


@dataclass(frozen=True)
class _Kind:
    """What of a comparison a slice is made of; the source's is 0 where nothing is said."""

    measure: Measure
    unit: str
    value: Callable[[Comparison], Values | Mask]
    source: Callable[[Comparison], Values] = lambda c: np.zeros(len(c.lead))


_DIVERGENCE = _Kind(Measure.MEAN, "nats", lambda c: c.divergence)
_REVERSE = _Kind(Measure.MEAN, "nats", lambda c: c.reverse_divergence)
_PERPLEXITY = _Kind(
    Measure.PERPLEXITY, "", lambda c: c.candidate_loss, source=lambda c: c.source_loss
)


def _choices(m: Measured) -> _Kind:
    return _Kind(Measure.MEAN, "", lambda c: ~c.agreement & m.decided)


def _slice(m: Measured, mask: Mask, name: str, title: str, kind: _Kind) -> Slice:
    p = m.positions
    return Slice(
        name=f"{AXIS}/{name}",
        axis=AXIS,
        measure=kind.measure,
        unit=kind.unit,
        title=title,
        items=m.figures(mask).items(
            kind.source(p.candidate),
            kind.value(p.candidate),
            None if p.floor is None else kind.value(p.floor),
        ),
    )


def details(m: Measured, text: TextFacts) -> LanguageDetails:
    """Return what a reader may look up."""
    figures, c, floor = m.figures(m.text), m.positions.candidate, m.positions.floor
    arms = [(Role.CANDIDATE, c), *([] if floor is None else [(Role.FLOOR, floor)])]
    return LanguageDetails(
        text=text,
        divergence=_spread(figures, c.divergence),
        reverse_divergence=_spread(figures, c.reverse_divergence),
        histogram=histogram(c.divergence[m.text]),
        perplexity=Perplexity(
            source=exponential(figures.mean(c.source_loss)),
            candidate=exponential(figures.mean(c.candidate_loss)),
            ratio=exponential(figures.mean(c.candidate_loss - c.source_loss)),
        ),
        agreement=_share(figures, c.agreement),
        first_choices=tuple(_first_choices(m, arm, found) for arm, found in arms),
        near_ties=1.0 - float(m.decided[m.text].mean()),
        tie_lead=m.tie_lead,
        tie_rule=_tie_rule(m.positions),
        parts=tuple(_part(m, name, mask) for name, _, mask in m.parts),
        curves=tuple(filter(None, (_by_position(m), _by_confidence(m)))),
        documents=_documents(m, figures),
    )


def _spread(figures: Figures, values: Values) -> Divergence:
    """Return all that is told of a divergence."""
    median, p99 = figures.quantiles(values, (0.5, 0.99))
    largest = float(values[figures.mask].max())
    return Divergence(mean=figures.mean(values), median=median, p99=p99, maximum=largest)


def histogram(values: Values) -> tuple[HistogramBin, ...]:
    """Count divergences in half decades; every value falls in one bin."""
    bins = np.searchsorted(np.array(_EDGES), values, side="right") - 1
    counts = np.bincount(bins, minlength=len(_EDGES))
    highs = (*_EDGES[1:], None)
    return tuple(
        HistogramBin(low=low, high=high, count=int(count))
        for low, high, count in zip(_EDGES, highs, counts, strict=True)
    )


def _first_choices(m: Measured, arm: Role, found: Comparison) -> FirstChoices:
    decided = m.text & m.decided
    return FirstChoices(
        arm=arm.value,
        all=_share(m.figures(m.text), found.agreement),
        decided=_share(m.figures(decided), found.agreement) if decided.any() else None,
    )


def _tie_rule(p: Positions) -> str:
    if p.floor is None:
        return "stated, since no floor was run"
    return f"what {TIE_QUANTILE:.0%} of the floor's own shifts of the lead stay under"


def _share(figures: Figures, values: Mask) -> Interval:
    return proportion_interval(figures.sums(values), figures.counts, figures.draws, figures.level)


def _mean(values: Values | Mask, mask: Mask) -> float:
    return float(values[mask].mean())


def _part(m: Measured, name: str, mask: Mask) -> Part:
    p, figures = m.positions, m.figures(mask)
    c, floor = p.candidate, p.floor
    return Part(
        name=name,
        documents=len(figures.found),
        positions=int(mask.sum()),
        divergence=figures.mean(c.divergence),
        floor=None if floor is None else _mean(floor.divergence, mask),
        excess=None if floor is None else figures.mean(c.divergence - floor.divergence),
        perplexity_ratio=exponential(figures.mean(c.candidate_loss - c.source_loss)),
        agreement=_share(figures, c.agreement),
    )


def _by_position(m: Measured) -> Curve | None:
    """Return the divergence along windows that were compared from their start."""
    p = m.positions
    own = np.array([domain not in _BUILT_IN for domain in p.domains], np.bool_)
    whole = np.asarray(p.whole & own[p.owners])
    if not whole.any():
        return None
    edges = [0.0, *(2.0**i for i in range(5, int(p.places[whole].max() + 1).bit_length() + 1))]
    return Curve(
        title="Divergence by position in the window",
        across="position, tokens",
        unit="nats",
        bands=_bands(m, whole, p.places.astype(np.float64), edges),
        logarithmic=True,
    )


def _by_confidence(m: Measured) -> Curve:
    """Return the divergence along the probability of the source's first choice."""
    return Curve(
        title="Divergence by the source's confidence",
        across="probability of the source's first choice",
        unit="nats",
        bands=_bands(m, m.text, m.positions.candidate.source_chance, _CHANCES),
        note="A source that is sure of its token leaves little room for divergence.",
    )


def _bands(m: Measured, mask: Mask, along: Values, edges: Sequence[float]) -> tuple[Band, ...]:
    """Return the bands between edges that have a prediction; the last one holds its end too."""
    p = m.positions
    places = np.minimum(np.searchsorted(np.array(edges), along, side="right") - 1, len(edges) - 2)
    found = []
    for number, (low, high) in enumerate(pairwise(edges)):
        inside = np.asarray(mask & (places == number))
        if inside.any():
            found.append(
                Band(
                    low=low,
                    high=high,
                    count=int(inside.sum()),
                    figure=m.figures(inside).mean(p.candidate.divergence),
                    floor=None if p.floor is None else _mean(p.floor.divergence, inside),
                )
            )
    return tuple(found)


def _documents(m: Measured, figures: Figures) -> tuple[DocumentScore, ...]:
    c, documents = m.positions.candidate, m.positions.documents
    columns = [
        figures.sums(values).tolist()
        for values in (
            c.divergence,
            c.reverse_divergence,
            c.source_loss,
            c.candidate_loss,
            c.agreement,
        )
    ]
    rows = zip(figures.found.tolist(), figures.counts.tolist(), *columns, strict=True)
    return tuple(
        DocumentScore(
            name=documents[index].name,
            sha256=documents[index].sha256,
            positions=int(count),
            divergence=divergence,
            reverse_divergence=reverse,
            source_loss=source,
            candidate_loss=candidate,
            agreements=int(agreements),
        )
        for index, count, divergence, reverse, source, candidate, agreements in rows
    )
