"""Six questions about a target with a draft, answered from what other commands measured.

Nothing is measured here: the pair check, the certificate, the evaluation and the measured speed are
put together, and each question is answered by the verdict of what it rests on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from scipy.stats import binomtest

from fewbit.records.certificate import CacheCase, Certificate, Standing
from fewbit.records.evaluation import Evaluation
from fewbit.records.outcome import Outcome, worst
from fewbit.records.pair import Consequence, PairCheck, PairReport, PairVerdict
from fewbit.records.speculation import SpeculationReport, SpeculationRun
from fewbit.records.speed_axis import Moment
from fewbit.records.validation import Question, Validation

LEVEL = 0.95
"""Confidence of the answer to whether it is faster: of an exact sign test over turns."""

_CUTTING = ("tokens", "merges and words", "probe texts")
"""Checks of a pair that say whether both cut text alike."""

_STANDINGS = {
    Standing.CERTIFIED: Outcome.ACCEPT,
    Standing.NOT_CERTIFIED: Outcome.REJECT,
    Standing.INCONCLUSIVE: Outcome.INCONCLUSIVE,
}

_Answer: TypeAlias = tuple[Outcome, Sequence[str]]
"""To a question, with its evidence."""

_NOT_ASKED: _Answer = (
    Outcome.INCONCLUSIVE,
    ("Not asked, since the draft cannot be used: see question 2.",),
)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the six questions are answered from; see `Validation`."""

    pair: PairReport | None
    certificate: Certificate | None
    evaluation: Evaluation | None
    refused: str
    speculation: SpeculationReport | None
    timed: Moment | None = None
    """When that was measured."""

    @property
    def names(self) -> tuple[str, str]:
        """The target's and the draft's."""
        if self.certificate is not None:
            return self.certificate.target.name, self.certificate.draft
        assert self.pair is not None  # it says why there is no certificate
        return self.pair.target.name, self.pair.draft.name


def validated(source: str, evidence: Evidence, seconds: float) -> Validation:
    """Answer the six questions.

    Args:
        source: what the target was made from.
        evidence: all of it.
        seconds: that gathering it took.
    """
    target, draft = evidence.names
    questions = (
        tokenizer_identity(evidence),
        compatible_tokens(evidence.pair, draft),
        baseline_equality(evidence.certificate),
        caches_right(evidence.certificate),
        quality(evidence.evaluation, evidence.refused),
        faster(evidence.speculation, evidence.timed),
    )
    return Validation(
        target=target,
        draft=draft,
        source=source,
        outcome=worst(question.outcome for question in questions),
        questions=questions,
        pair=evidence.pair,
        certificate=evidence.certificate,
        evaluation=evidence.evaluation,
        refused=evidence.refused,
        speculation=evidence.speculation,
        seconds=seconds,
    )


def usable(pair: PairReport | None) -> bool:
    """Whether a draft can be used at all; one without a model of its own can."""
    return pair is None or pair.verdict is not PairVerdict.NOT_USABLE


def tokenizer_identity(evidence: Evidence) -> Question:
    """Answer whether target, source and draft make the same tokens of a text."""
    found = list(_against_source(evidence))
    refused = evidence.evaluation is None or not usable(evidence.pair)
    if evidence.pair is None:
        found.append("The draft reads and proposes the target's own tokens.")
    else:
        unlike = [check for check in _checks(evidence.pair, _CUTTING) if check.differences]
        found += [_differs(check) for check in unlike] or ["Target and draft cut text alike."]
    return Question(
        name="tokenizer identity",
        asked="Do target and source make the same tokens of a text, and the draft too, or mapped?",
        outcome=Outcome.REJECT if refused else Outcome.ACCEPT,
        evidence=tuple(found),
    )


def _against_source(evidence: Evidence) -> Iterator[str]:
    if evidence.evaluation is None:
        yield f"Target and source are not one model: {evidence.refused}"
        return
    for check in evidence.evaluation.identity.checks:
        if check.name in ("vocabulary", "tokenization", "beginning of a text"):
            yield f"Target and source, {check.name}: {check.found}."


def compatible_tokens(pair: PairReport | None, draft: str) -> Question:
    """Answer whether the draft can propose the target's tokens, special ones included."""
    if pair is None:
        outcome = Outcome.ACCEPT
        found = [f"{draft} drafts with the target's own tokens."]
    else:
        outcome = Outcome.ACCEPT if usable(pair) else Outcome.REJECT
        found = [f"{pair.verdict.value}: {pair.reasons[0]}", *pair.reasons[1:]]
        others = [check for check in pair.checks if check.name not in _CUTTING]
        found += [_differs(check) for check in others if _matters(check)]
        found += [f"The same, {c.name}: {c.agrees}." for c in others if not c.differences]
    return Question(
        name="vocabulary and special tokens",
        asked="Can the draft propose what the target says, special tokens included?",
        outcome=outcome,
        evidence=tuple(found),
    )


def _checks(pair: PairReport, names: Sequence[str]) -> list[PairCheck]:
    return [check for check in pair.checks if check.name in names]


def _matters(check: PairCheck) -> bool:
    return any(d.consequence is not Consequence.NONE for d in check.differences)


def _differs(check: PairCheck) -> str:
    first = check.differences[0]
    return f"Differs, {check.name}: {first.found} {first.effect}"


def baseline_equality(certificate: Certificate | None) -> Question:
    """Answer whether the output along the draft is the target's alone."""
    outcome, found = _NOT_ASKED if certificate is None else _equality(certificate)
    return Question(
        name="baseline equality",
        asked="Is the output with the draft that of the target alone?",
        outcome=outcome,
        evidence=tuple(found),
    )


def _equality(certificate: Certificate) -> _Answer:
    equality = certificate.equality
    found = list(certificate.reasons)
    found.append(f"Preserved is {certificate.preserved}")
    if certificate.sampling is None:
        found.append("Sampling on the model itself was not tested; --long does.")
    return _STANDINGS[certificate.standing], equality.differences or found


def caches_right(certificate: Certificate | None) -> Question:
    """Answer whether keys and values are right after rejected drafts."""
    outcome, found = _NOT_ASKED if certificate is None else _caches(certificate)
    return Question(
        name="caches after rollback",
        asked="Are keys and values right after drafts were rejected?",
        outcome=outcome,
        evidence=tuple(found),
    )


def _caches(certificate: Certificate) -> _Answer:
    ours, drafts = certificate.caches, certificate.draft_caches
    outcome = Outcome.ACCEPT
    if not any(case.written_over for case in ours):
        outcome = Outcome.INCONCLUSIVE
    if any(case.differing for case in (*ours, *drafts)):
        outcome = Outcome.REJECT
    found = [_cache("The target's", case) for case in ours]
    found += [_cache("The draft's", case) for case in drafts]
    if not drafts:
        found.append("The draft has no cache of its own.")
    return outcome, found


def _cache(whose: str, case: CacheCase) -> str:
    compared = f"{case.pages} pages of {case.bytes:,} bytes, {case.written_over} rows of rejected"
    differ = f"pages {', '.join(map(str, case.differing))} differ from a fresh run's"
    equal = "equal to a fresh run's"
    return (
        f"{whose} ({case.draft}, {case.params}): {compared} tokens written over, "
        f"{differ if case.differing else equal}."
    )


def quality(evaluation: Evaluation | None, refused: str) -> Question:
    """Answer whether the target may stand for its source."""
    if evaluation is None:
        outcome, found = Outcome.REJECT, [refused]
    else:
        outcome, found = evaluation.verdict.outcome, list(evaluation.verdict.reasons)
    return Question(
        name="quality of the target",
        asked="May the quantized target take its source's place?",
        outcome=outcome,
        evidence=tuple(found),
    )


def faster(report: SpeculationReport | None, timed: Moment | None = None) -> Question:
    """Answer whether the draft makes the target faster at every concurrency that was measured."""
    outcome, found = _NOT_ASKED if report is None else _speed(report, timed)
    return Question(
        name="speedup at concurrency",
        asked="Is the target faster with the draft at the service's concurrency?",
        outcome=outcome,
        evidence=tuple(found),
    )


def _speed(report: SpeculationReport, timed: Moment | None) -> _Answer:
    together = sorted({run.sequences for run in report.runs})
    answers = {count: _sign(_gains(report, count)) for count in together}
    found = [
        f"{count} at once: {median(_gains(report, count)):.2f} times as fast (median of "
        f"{len(_gains(report, count))} turns, {answers[count].value}); "
        + ", ".join(map(_kind, (r for r in report.runs if r.sequences == count)))
        + "."
        for count in together
    ]
    unequal = [run for run in report.runs if run.repeats and not _same(run)]
    found += [f"Not the same output: {run.kind}, {run.sequences} at once." for run in unequal]
    if timed is not None:
        load = "" if timed.load is None else f", beside a load of {timed.load:.1f}"
        found.append(f"Measured at {timed.ended}{load}.")
    return Outcome.REJECT if unequal else worst(answers.values()), found


def _gains(report: SpeculationReport, sequences: int) -> list[float]:
    return [t.gain for run in report.runs if run.sequences == sequences for t in run.turns]


def _sign(gains: Sequence[float]) -> Outcome:
    """Return whether most turns are faster, by an exact sign test (Conover 1999, 3.4)."""
    wins = sum(gain > 1 for gain in gains)
    interval = binomtest(wins, len(gains)).proportion_ci(LEVEL)
    if interval.low > 0.5:
        return Outcome.ACCEPT
    return Outcome.REJECT if interval.high < 0.5 else Outcome.INCONCLUSIVE


def _kind(run: SpeculationRun) -> str:
    accepted = "" if run.acceptance is None else f", {run.acceptance:.0%} accepted"
    return f"{run.kind} {run.gain:.2f}{accepted}"


def _same(run: SpeculationRun) -> bool:
    return all(turn.same_output for turn in run.turns)
