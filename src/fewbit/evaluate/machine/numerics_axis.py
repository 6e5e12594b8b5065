"""The axis of numerics: what the values in the layers of both arms look like, over one text.

Values that are not finite (located by layer, site, expert and token), keys and values beyond their
store, inputs that static scales clip or that an outlier's scale rounds to zero, and activation
outliers. Of mixtures the tokens of every expert, and the divergence where a rare one is passed,
which a mean over all tokens would hide.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fewbit.calibrate.text import Documents
from fewbit.calibrate.windows import Window, cut_windows
from fewbit.errors import UsageError
from fewbit.evaluate.arms import Arm, Arms, Role, Room
from fewbit.evaluate.axis import Brings
from fewbit.evaluate.language.divergence import compare
from fewbit.evaluate.machine.routing import Routing
from fewbit.evaluate.machine.taps import STEP_ROWS, Seen, Tally, Tapped, Watch
from fewbit.progress import Progress
from fewbit.records.drawn import Band, Curve
from fewbit.records.interval import Interval
from fewbit.records.kept import fingerprint
from fewbit.records.measurement import AxisResult, Finding, Item, Measure, Slice
from fewbit.records.numerics import NumericsDetails, SiteNumerics

NAME = "numerics"

CLIPPED, RARE = f"{NAME}/clipped", f"{NAME}/rare-experts"
NON_FINITE, OVERFLOW = f"{NAME}/non-finite", f"{NAME}/overflow"

HALF_RANGE = 65504.0
"""Of fp16: what a runtime that keeps activations in it can hold."""


@dataclass(frozen=True, kw_only=True)
class NumericsAxis:
    """How numerics are looked at.

    Raises:
        UsageError: no window, or windows of less than eight tokens.
    """

    documents: Documents
    windows: int = 12
    window_tokens: int = 128

    def __post_init__(self) -> None:
        if self.windows < 1 or self.window_tokens < 8:
            raise UsageError("windows must be at least 1 and window_tokens at least 8.")

    @property
    def name(self) -> str:
        """`numerics`."""
        return NAME

    @property
    def brings(self) -> Brings:
        """What is clipped where scales are static, and what rare experts lose in mixtures."""
        return Brings({CLIPPED: Measure.MEAN, RARE: Measure.MEAN}, (NON_FINITE, OVERFLOW))

    def run(self, arms: Arms, progress: Progress) -> AxisResult:
        """Run both arms over the text, step by step together; what is kept of both is taken.

        Raises:
            UnsupportedError: an arm runs elsewhere, or not on the native executor.
            UsageError: the text has no window.
        """
        began = time.perf_counter()
        spec = self.documents.sha256, self.windows, self.window_tokens
        pair = fingerprint(NAME, spec, arms.fingerprint(Role.SOURCE))
        kept = arms.kept(Role.CANDIDATE, pair)
        if NAME not in kept.names():
            kept.add(NAME, self._measured(arms, progress))
        return replace(kept.read(AxisResult)[NAME], seconds=time.perf_counter() - began)

    def _measured(self, arms: Arms, progress: Progress) -> AxisResult:
        room = Room(context=self.window_tokens)
        with arms.open(Role.SOURCE, room) as one, arms.open(Role.CANDIDATE, room) as other:
            look = _Look(one, other, self.window_tokens)
            windows = self._windows(one)
            for done, window in enumerate(windows):
                progress("windows", done, len(windows))
                look.run(window, self.documents.documents[window.document].name)
            sites = tuple(look.sites())
        tokens = sum(len(window.tokens) for window in windows)
        return AxisResult(
            axis=NAME,
            slices=(*clipped_slice(sites, tokens), *look.rare_slice()),
            findings=(look.finite(), overflow(sites)),
            details=NumericsDetails(
                text=self.documents.name,
                windows=len(windows),
                tokens=tokens,
                sites=sites,
                experts=look.routing.experts(),
                outliers=outlier_curves(sites),
            ),
            notes=tuple(_notes(sites, look.routing)),
            seconds=0.0,
        )

    def _windows(self, arm: Arm) -> tuple[Window, ...]:
        tokenizer = arm.subject.tokenizer
        return cut_windows(
            self.documents,
            lambda text: tokenizer.encode(text, add_special=False),
            tokenizer.behaviour.prefix,
            length=self.window_tokens,
            limit=self.windows,
        )


@dataclass(frozen=True)
class _Step:
    """Rows that both arms ran: whose they are, and how far apart the arms are after each."""

    document: str
    divergence: NDArray[np.float64]


class _Look:
    """Both arms, tapped, and what was seen of them so far."""

    def __init__(self, source: Arm, candidate: Arm, tokens: int) -> None:
        self._source = Tapped(source.loaded.runner, tokens)
        self._candidate = Tapped(candidate.loaded.runner, tokens)
        self.routing = Routing(self._candidate.program)
        self._steps: list[_Step] = []

    def run(self, window: Window, document: str) -> None:
        """Run one window through both arms."""
        all_logits = self.routing.mixtures
        for position in range(0, len(window.tokens), STEP_ROWS):
            rows = window.tokens[position : position + STEP_ROWS]
            with np.errstate(all="ignore"):
                where = f"document '{document}'"
                one, seen = self._source.run(rows, position, where, all_logits=all_logits)
                other, met = self._candidate.run(rows, position, where, all_logits=all_logits)
                if all_logits:
                    divergence = divergences(one, other)
                    self._steps.append(_Step(document, divergence))
                    self.routing.add(seen, met, divergence)

    def sites(self) -> Iterator[SiteNumerics]:
        """Yield what was seen at each place that both arms have."""
        source = {seen[0].tap: seen for seen in self._source.seen()}
        for seen in self._candidate.seen():
            if (tap := seen[0].tap) in source:
                yield _site(source[tap], seen)

    def finite(self) -> Finding:
        """Return whether every value of both arms was finite, and where the first was not."""
        for name, arm in (("candidate", self._candidate), ("source", self._source)):
            for watch, tally in arm.seen():
                if tally.not_finite:
                    return self._not_finite(name, watch, tally)
        found = "Every value in the layers of both arms was finite."
        return Finding(name=NON_FINITE, axis=NAME, passed=True, found=found)

    def _not_finite(self, name: str, watch: Watch, tally: Tally) -> Finding:
        where = f"layer {watch.layer}, site '{watch.site}'" if watch.layer >= 0 else watch.site
        broken = [e for layer, e in self.routing.broken() if layer == watch.layer]
        expert = ""
        if broken and name == "candidate" and watch.role == "experts":
            expert = f"; every row through expert {', '.join(map(str, broken))} was so"
        found = (
            f"The {name} gives {tally.not_finite:,} values that are not finite at {where}, first "
            f"in {tally.first}{expert}."
        )
        return Finding(name=NON_FINITE, axis=NAME, passed=False, found=found)

    def rare_slice(self) -> Iterator[Slice]:
        """Yield the divergence at tokens that pass a rare expert; an item is a document."""
        rare = self.routing.rare_rows()
        rows = [
            (step.document, step.divergence[which & np.isfinite(step.divergence)])
            for step, which in zip(self._steps, rare, strict=True)
        ]
        items = [
            _rare_item(document, np.concatenate([found for _, found in group]))
            for document, group in groupby(rows, key=lambda row: row[0])
        ]
        kept = tuple(item for item in items if item is not None)
        if kept:
            yield Slice(
                name=RARE,
                axis=NAME,
                measure=Measure.MEAN,
                unit="nats",
                title="KL divergence at tokens that pass a rare expert",
                items=kept,
            )


def divergences(source: NDArray[np.float32], candidate: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return KL(source || candidate) of each row in nats, NaN where a logit is not finite."""
    finite = np.isfinite(source).all(axis=1) & np.isfinite(candidate).all(axis=1)
    found = np.full(len(source), np.nan)
    if finite.any():
        targets = np.zeros(int(finite.sum()), np.int32)
        found[finite] = compare(source[finite], candidate[finite], targets).divergence
    return found


def clipped_slice(sites: Sequence[SiteNumerics], tokens: int) -> Iterator[Slice]:
    """Yield the share of inputs that static scales clip, where there are any; an item is a place.

    Args:
        sites: all places.
        tokens: that were run, the weight of an item.
    """
    inputs = [site for site in sites if site.role == "input"]
    if not any(site.static for site in inputs):
        return
    yield Slice(
        name=CLIPPED,
        axis=NAME,
        measure=Measure.MEAN,
        unit="",
        title="inputs of matrices that a static scale clips",
        items=tuple(
            Item(
                name=f"layer {site.layer}, {site.site}",
                cluster=f"layer {site.layer}",
                weight=tokens,
                source=site.source_clipped,
                candidate=site.candidate_clipped,
            )
            for site in inputs
        ),
    )


def overflow(sites: Sequence[SiteNumerics]) -> Finding:
    """Return whether every key and value fits what stores it."""
    met = [site for site in sites if site.candidate_overflow]
    found = "Every key and value was within what its store can hold."
    if met:
        first = met[0]
        found = (
            f"{first.candidate_overflow:,} {first.role}s of layer {first.layer} are beyond what "
            f"their store can hold (the largest is {first.candidate_largest:.4g}); "
            f"{len(met)} places are so."
        )
    return Finding(name=OVERFLOW, axis=NAME, passed=not met, found=found)


def outlier_curves(sites: Sequence[SiteNumerics]) -> tuple[Curve, ...]:
    """Return how far the largest input of each layer stands out, of both arms."""
    layers = sorted({site.layer for site in sites if site.layer >= 0 and site.role == "input"})
    return tuple(
        Curve(
            title=f"Largest input of a matrix over the median one, {arm}",
            across="layer",
            unit="",
            bands=tuple(_band(sites, layer, f"{arm}_outlier") for layer in layers),
        )
        for arm in ("source", "candidate")
    )


def _band(sites: Sequence[SiteNumerics], layer: int, figure: str) -> Band:
    values = [getattr(s, figure) for s in sites if s.layer == layer and s.role == "input"]
    return Band(low=layer, high=layer + 1, count=len(values), figure=Interval(value=max(values)))


def _rare_item(document: str, divergence: NDArray[np.float64]) -> Item | None:
    if not len(divergence):
        return None
    mean = float(divergence.mean())
    return Item(name=document, cluster=document, weight=len(divergence), source=0.0, candidate=mean)


def _site(at_source: Seen, at_candidate: Seen) -> SiteNumerics:
    (read, source), (watch, candidate) = at_source, at_candidate
    return SiteNumerics(
        layer=watch.layer,
        site=watch.site,
        role=watch.role,
        source_largest=source.largest,
        candidate_largest=candidate.largest,
        source_outlier=source.outlier,
        candidate_outlier=candidate.outlier,
        source_not_finite=source.not_finite,
        candidate_not_finite=candidate.not_finite,
        source_clipped=source.share(source.clipped),
        candidate_clipped=candidate.share(candidate.clipped),
        source_zeroed=source.share(source.zeroed),
        candidate_zeroed=candidate.share(candidate.zeroed),
        candidate_overflow=candidate.overflow,
        static=read.input_scale is not None or watch.input_scale is not None,
    )


def _notes(sites: Sequence[SiteNumerics], routing: Routing) -> Iterator[str]:
    large = max(sites, key=lambda site: site.candidate_largest, default=None)
    if large is not None and large.candidate_largest > HALF_RANGE:
        yield (
            f"The largest value is {large.candidate_largest:.4g}, at layer {large.layer}, site "
            f"'{large.site}': a runtime that keeps activations in fp16 would overflow there."
        )
    unseen = [e for e in routing.experts() if not e.source_tokens and not e.candidate_tokens]
    if unseen:
        first = unseen[0]
        yield (
            f"{len(unseen)} experts were passed by no token of the text, the first expert "
            f"{first.expert} of layer {first.layer}: nothing was seen of them here."
        )
