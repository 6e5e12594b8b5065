"""Questions behind long texts, asked of one arm and judged."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from fewbit.evaluate.answers import Answerer, Ask, conversation
from fewbit.evaluate.long_context.haystack import Haystack, Question
from fewbit.records.answers import Answer, Likelihood
from fewbit.records.kept import Kept
from fewbit.records.long_context import Recalled

ANSWER_TOKENS = 64


class Judge(Enum):
    """How it is told whether a model knows what a long text says."""

    CHOICE = "choice"
    """The right answer is likelier than three others that stand in the text too. A text is run once
    for all its questions, and a model need not follow instructions."""
    ANSWER = "answer"
    """The text is a conversation's question, and the answer has what was asked for."""

    @property
    def words(self) -> str:
        """What a reader is told."""
        if self is Judge.CHOICE:
            return "the right answer is likelier than each of three others that stand in the text"
        return "the answer, in a conversation, has the numbers that were asked for"


@dataclass(frozen=True)
class Asked:
    """A question with its text."""

    haystack: Haystack
    question: Question

    @property
    def name(self) -> str:
        """A name that tells it from all others by what is asked."""
        q = self.question
        parts = (self.haystack.text, q.asked, q.begun, q.answer, *q.others)
        return f"{q.name}@{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


def questions_of(haystacks: Sequence[Haystack]) -> tuple[Asked, ...]:
    """Return all questions in order."""
    return tuple(Asked(haystack, q) for haystack in haystacks for q in haystack.questions)


def recall(
    answerer: Answerer,
    judge: Judge,
    asked: Sequence[Asked],
    kept: Kept,
    progress: Callable[[int], None],
) -> None:
    """Ask what is not kept yet, and keep how it was answered.

    Args:
        answerer: what is asked.
        judge: how answers are judged.
        asked: the questions; those of one text stand together.
        kept: where outcomes are kept, by `Asked.name`.
        progress: told how many more are done.
    """
    names = kept.names()
    missing = [one for one in asked if one.name not in names]
    if judge is Judge.ANSWER:
        _answered(answerer, missing, kept, progress)
        return
    for haystack in dict.fromkeys(one.haystack for one in missing):
        group = [one for one in missing if one.haystack == haystack]
        for one, found in zip(group, _chosen(answerer, haystack, group), strict=True):
            kept.add(one.name, found)
        progress(len(group))


def _chosen(answerer: Answerer, haystack: Haystack, group: Sequence[Asked]) -> list[Recalled]:
    """Judge the questions of one text by likelihoods; the text is run once."""
    choices = [(q.answer, *q.others) for q in (one.question for one in group)]
    continuations = [
        one.question.begun + choice
        for one, texts in zip(group, choices, strict=True)
        for choice in texts
    ]
    found = iter(answerer.likelihoods(haystack.text, continuations))
    return [_judged(texts, [next(found) for _ in texts]) for texts in choices]


def _judged(texts: Sequence[str], found: Sequence[Likelihood]) -> Recalled:
    """Judge one question; the first choice is the right one, and a tie is a failure."""
    right, *others = (one.logprob for one in found)
    said = max(range(len(texts)), key=lambda i: (found[i].logprob, i))
    return Recalled(
        failed=right <= max(others),
        said=texts[said].strip(),
        loss=math.log1p(math.fsum(math.exp(min(other - right, 700.0)) for other in others)),
    )


def _answered(
    answerer: Answerer, missing: Sequence[Asked], kept: Kept, progress: Callable[[int], None]
) -> None:
    by_name = {one.name: one.question for one in missing}

    def keep(answer: Answer) -> None:
        needed = by_name[answer.name].needed
        kept.add(answer.name, Recalled(failed=not _has(answer.text, needed), said=answer.text))
        progress(1)

    answerer.answer([_ask(one) for one in missing], keep)


def _ask(one: Asked) -> Ask:
    content = f"{one.haystack.text}\n\n{one.question.asked}"
    return Ask(one.name, conversation(content), ANSWER_TOKENS)


def _has(text: str, needed: Sequence[str]) -> bool:
    """Return whether a text has all that is needed, in its order."""
    position = 0
    for wanted in needed:
        found = text.find(wanted, position)
        if found < 0:
            return False
        position = found + len(wanted)
    return True
