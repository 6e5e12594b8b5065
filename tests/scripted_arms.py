"""Arms that answer what a test says, for axes that only ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager

from fewbit.evaluate.answers import Ask, Prompt
from fewbit.evaluate.arms import Arm, Arms, Role
from fewbit.records.answers import Answer, AnswererFacts, Likelihood
from fewbit.records.generation import FinishReason


def answer(name: str, text: str, finish: FinishReason = FinishReason.STOP) -> Answer:
    return Answer(
        name=name, text=text, tokens=3, finish=finish, first_token=0.1, gaps=(0.1, 0.1), seconds=0.3
    )


def text_of(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def echo(ask: Ask) -> str:
    return text_of(ask.prompt)


class Scripted:
    """Says `says(ask)`, and finds a continuation as likely as `likes(context, text)`.

    A text of an ask's `max_tokens` words or more is cut off there.
    """

    def __init__(
        self,
        says: Callable[[Ask], str] = echo,
        likes: Callable[[str, str], float] = lambda context, text: -1.0,
        template: str = "digest",
        finish: FinishReason = FinishReason.STOP,
    ):
        self.facts = AnswererFacts(name="scripted", begins="<s> (1)", template=template)
        self.says, self.likes, self.finish = says, likes, finish
        self.asks, self.scored = [], []

    def answer(self, asks, keep):
        for ask in reversed(asks):
            self.asks.append(ask)
            words = self.says(ask).split(" ")
            finish = FinishReason.LENGTH if len(words) >= ask.max_tokens else self.finish
            keep(answer(ask.name, " ".join(words[: ask.max_tokens]), finish))

    def unscored(self, context) -> str:
        return ""

    def likelihoods(self, context, continuations: Sequence[str]) -> list[Likelihood]:
        self.scored.append((context, tuple(continuations)))
        return [
            Likelihood(logprob=self.likes(text_of(context), text), tokens=1, greedy=False)
            for text in continuations
        ]


class ScriptedParty:
    """What opens as an arm elsewhere, and how often it did."""

    def __init__(self, answerer: Scripted, name: str):
        self.answerer, self.fingerprint, self.opened = answerer, name, 0

    @contextmanager
    def open(self, role, room):
        self.opened += 1
        yield Arm(role, self.fingerprint, self.answerer)


def scripted_arms(source, candidate, floor=None, work=None) -> Arms:
    given = {Role.SOURCE: source, Role.FLOOR: floor, Role.CANDIDATE: candidate}
    parties = {r: ScriptedParty(a, r.value) for r, a in given.items() if a is not None}
    return Arms(parties, work)


def no_progress(what: str, done: int, count: int) -> None:
    assert 0 <= done <= count
