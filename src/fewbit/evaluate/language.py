"""The axis of language: divergence and perplexity on a text, window by window.

Windows are run on the source and on each other arm in lockstep; what came of a window is kept by
the hash of its tokens, so that more windows cost no more than those that are new.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields

import numpy as np

from fewbit.calibrate.text import Documents
from fewbit.calibrate.windows import Window, cut_windows
from fewbit.errors import UsageError
from fewbit.evaluate.arms import Arm, Arms, Role, Room
from fewbit.evaluate.axis import Progress
from fewbit.evaluate.calibrated import refuse_calibrated
from fewbit.evaluate.divergence import DTYPES, Comparison
from fewbit.evaluate.identity import describe_prefix
from fewbit.evaluate.kept import Kept, fingerprint
from fewbit.evaluate.language_summary import Summary, summarize
from fewbit.evaluate.score import Pair, Scores, join, score
from fewbit.evaluate.subject import open_subject
from fewbit.records.language import DocumentScore, LanguageDetails, TextFacts, WindowScores
from fewbit.records.measurement import AxisResult, Item, Measure, Slice
from fewbit.runtime.native import available_cores
from fewbit.tokens.tokenizer import Tokenizer

NAME = "language"


@dataclass(frozen=True, kw_only=True)
class LanguageAxis:
    """What text is scored, and how much of it.

    Raises:
        UsageError: no window, or windows of fewer than 8 tokens.
    """

    documents: Documents
    windows: int = 40
    """Windows scored, at most; the first of every document before the second of any."""
    window_tokens: int = 512
    """Tokens of a full window, of which the second half is scored."""
    threads: int | None = None
    """Of the comparison; None for every core."""
    level: float = 0.95
    """Confidence of the intervals in the details."""

    def __post_init__(self) -> None:
        for name, least in (("windows", 1), ("window_tokens", 8)):
            value = getattr(self, name)
            if value < least:
                raise UsageError(f"{name} is {value}; it must be at least {least}.")

    @property
    def name(self) -> str:
        """The first part of its slices' names."""
        return NAME

    def run(self, arms: Arms, progress: Progress) -> AxisResult:
        """Score every window on every arm.

        Raises:
            UsageError: the text has no window, a window is longer than the model's context, or the
                candidate was calibrated on the text.
            NumericalError: a logit is NaN or infinite; names arm, document and position.
        """
        began = time.perf_counter()
        tokenizer = self._prepared(arms)
        windows = self._cut(tokenizer)
        others = [role for role in arms.roles if role is not Role.SOURCE]
        kept: dict[Role, Kept] = {role: _kept(arms, role) for role in others}
        self._score(arms, kept, windows, progress)
        scores = {role: _scores(kept[role], windows) for role in others}
        found = {role: summarize(s, self.documents, self.level) for role, s in scores.items()}
        floor = found[Role.FLOOR].documents if Role.FLOOR in found else None
        summary = found[Role.CANDIDATE]
        return AxisResult(
            axis=NAME,
            slices=_slices(summary.documents, floor),
            details=_details(summary, self._facts(tokenizer, windows, scores[Role.CANDIDATE])),
            seconds=time.perf_counter() - began,
        )

    def _prepared(self, arms: Arms) -> Tokenizer:
        """Refuse a candidate that has seen the text; return the tokenizer, which is both's."""
        candidate = open_subject(arms.local(Role.CANDIDATE).path)
        try:
            refuse_calibrated(self.documents, candidate.manifest)
            self._require_context(candidate.model.config.context)
            return candidate.tokenizer
        finally:
            candidate.model.checkpoint.close()

    def _require_context(self, most: int) -> None:
        if self.window_tokens > most:
            raise UsageError(
                f"window_tokens is {self.window_tokens}, but the model was made for {most} "
                "positions; ask for no more than that."
            )

    def _cut(self, tokenizer: Tokenizer) -> tuple[Window, ...]:
        found = cut_windows(
            self.documents,
            lambda text: tokenizer.encode(text, add_special=False),
            tokenizer.behaviour.prefix,
            length=self.window_tokens,
            limit=self.windows,
        )
        if not found:
            raise UsageError(
                f"The text '{self.documents.name}' has no document of at least four tokens; give "
                "more text."
            )
        return found

    def _score(
        self,
        arms: Arms,
        kept: Mapping[Role, Kept],
        windows: Sequence[Window],
        progress: Progress,
    ) -> None:
        """Run what is not kept yet; the arms that nothing is asked of stay closed."""
        todo = {role: _missing(kept[role], windows) for role in kept}
        count = sum(map(len, todo.values()))
        if not count:
            return
        room, done = Room(context=self.window_tokens), 0
        with ExitStack() as stack:
            source = stack.enter_context(arms.open(Role.SOURCE, room))
            pairs = {
                role: _pair(source, stack.enter_context(arms.open(role, room)))
                for role in todo
                if todo[role]
            }
            for role, pair in pairs.items():
                for window in todo[role]:
                    threads = self.threads or available_cores()
                    scores = score(pair, self.documents, [window], threads=threads)
                    kept[role].add(_name(window), _window_scores(scores))
                    done += 1
                    progress(f"language: {role.value}", done, count)

    def _facts(self, tokenizer: Tokenizer, windows: Sequence[Window], scores: Scores) -> TextFacts:
        return TextFacts(
            name=self.documents.name,
            sha256=self.documents.sha256,
            documents=len({window.document for window in windows}),
            windows=len(windows),
            window_tokens=self.window_tokens,
            tokens=sum(len(window.tokens) for window in windows),
            positions=len(scores.owners),
            bos=describe_prefix(tokenizer),
        )


def _kept(arms: Arms, role: Role) -> Kept:
    return arms.kept(role, fingerprint(NAME, arms.fingerprint(Role.SOURCE)))


def _name(window: Window) -> str:
    return hashlib.sha256(window.tokens.tobytes()).hexdigest()


def _missing(kept: Kept, windows: Sequence[Window]) -> list[Window]:
    names = kept.names()
    return [window for window in windows if _name(window) not in names]


def _pair(source: Arm, other: Arm) -> Pair:
    return Pair(source.loaded.runner, other.loaded.runner)


def _window_scores(scores: Scores) -> WindowScores:
    columns = {f.name: getattr(scores.comparison, f.name) for f in fields(Comparison)}
    return WindowScores(**{name: tuple(values.tolist()) for name, values in columns.items()})


def _scores(kept: Kept, windows: Sequence[Window]) -> Scores:
    found = kept.read(WindowScores)
    return join([_window(found[_name(window)], window.document) for window in windows])


def _window(kept: WindowScores, document: int) -> Scores:
    columns = (
        np.array(getattr(kept, f.name), DTYPES.get(f.name, np.float64)) for f in fields(Comparison)
    )
    return Scores(Comparison(*columns), np.full(len(kept.divergence), document, np.intp))


def _slices(
    documents: Sequence[DocumentScore], floor: Sequence[DocumentScore] | None
) -> tuple[Slice, ...]:
    floors: Sequence[DocumentScore | None] = floor or [None] * len(documents)
    pairs = list(zip(documents, floors, strict=True))
    return (
        Slice(
            name=f"{NAME}/kl",
            axis=NAME,
            measure=Measure.MEAN,
            unit="nats",
            title="KL divergence of the candidate from the source",
            items=tuple(
                _item(d, 0.0, d.divergence, None if f is None else f.divergence) for d, f in pairs
            ),
        ),
        Slice(
            name=f"{NAME}/perplexity",
            axis=NAME,
            measure=Measure.PERPLEXITY,
            unit="",
            title="perplexity, candidate over source",
            items=tuple(
                _item(d, d.source_loss, d.candidate_loss, None if f is None else f.candidate_loss)
                for d, f in pairs
            ),
        ),
    )


def _item(document: DocumentScore, source: float, candidate: float, floor: float | None) -> Item:
    """Return a document's means; its weight is its number of positions."""
    count = document.positions
    return Item(
        name=document.name,
        cluster=document.name,
        weight=count,
        source=source / count,
        candidate=candidate / count,
        floor=None if floor is None else floor / count,
    )


def _details(summary: Summary, text: TextFacts) -> LanguageDetails:
    return LanguageDetails(
        text=text,
        divergence=summary.divergence,
        reverse_divergence=summary.reverse_divergence,
        histogram=summary.histogram,
        perplexity=summary.perplexity,
        agreement=summary.agreement,
        documents=summary.documents,
    )
