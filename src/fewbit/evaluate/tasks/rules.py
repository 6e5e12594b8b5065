"""Whether an answer is right, by the rule that a task declares.

`exact`: the whole answer is one of the right ones. `contains`: one of them stands in it as whole
words. `number`: the last number in it, or the first behind `####`, equals one of them. Both sides
are compared without differences of case, of spaces, and of marks around them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

from fewbit.evaluate.tasks.ifeval import follows, follows_loosely
from fewbit.evaluate.tasks.items import ChoiceItem, GenerationItem, InstructionItem
from fewbit.records.tasks import ChoiceOutcome

_NUMBER = re.compile(r"(?<![\w.])[-−]?[$€£]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\d,]*\d)")
_MARKS = " \t\n\"'“”‘’`*_.,;:!?()"
_SCORE_MARK = "####"


def normalized(text: str) -> str:
    """Return a text without differences that no reader would call one."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).strip(_MARKS)


def last_number(text: str) -> Decimal | None:
    """Return the last number of a text, or the first behind its last `####`; None without any."""
    _, mark, behind = text.rpartition(_SCORE_MARK)
    found = _NUMBER.findall(behind if mark else text)
    if not found:
        return None
    number = found[0] if mark else found[-1]
    return Decimal(re.sub(r"[$€£,]", "", number).replace("−", "-"))


def is_right(rule: str, item: GenerationItem, text: str) -> bool:
    """Return whether a generated text is right by the rule of its task."""
    if rule == "number":
        number = last_number(text)
        return number is not None and number in [last_number(answer) for answer in item.answers]
    answers = [normalized(answer) for answer in item.answers]
    found = normalized(text)
    if rule == "exact":
        return found in answers
    return any(_stands_in(found, answer) for answer in answers)


def _stands_in(text: str, answer: str) -> bool:
    """Return whether an answer stands in a text as whole words; 5 does not in 5.5."""
    before = r"(?<!\d[.,])" if answer[:1].isdigit() else ""
    behind = r"(?![.,]\d)" if answer[-1:].isdigit() else ""
    return re.search(rf"(?<!\w){before}{re.escape(answer)}(?!\w){behind}", text) is not None


def is_followed(rule: str, item: InstructionItem, text: str) -> bool:
    """Return whether every instruction of a prompt is followed."""
    check = follows if rule == "strict" else follows_loosely
    return all(check(instruction, text) for instruction in item.instructions)


def broken(rule: str, item: InstructionItem, text: str) -> tuple[str, ...]:
    """Return the ids of the instructions that are not followed."""
    check = follows if rule == "strict" else follows_loosely
    return tuple(one.id for one in item.instructions if not check(one, text))


def scores(rule: str, item: ChoiceItem, outcome: ChoiceOutcome) -> tuple[float, ...]:
    """Return each option's score in nats: its log-likelihood, or that per byte of its text."""
    found = [likelihood.logprob for likelihood in outcome.likelihoods]
    if rule == "likelihood":
        return tuple(found)
    texts = _repeated(item.continuations, len(found))
    return tuple(
        value / len(text.strip().encode()) for value, text in zip(found, texts, strict=True)
    )


def chosen(values: Sequence[float]) -> int:
    """Return the option of the highest score; of equal ones the first."""
    return max(range(len(values)), key=lambda i: (values[i], -i))


def lead(item: ChoiceItem, values: Sequence[float]) -> float:
    """Return how far the right option's score lies above the best other one's."""
    others = [value for i, value in enumerate(values) if i != item.answer]
    return values[item.answer] - max(others)


def _repeated(texts: Sequence[str], count: int) -> Sequence[str]:
    return texts if len(texts) == count else [texts[0]] * count
