"""Arms whose answers are written down, for axes that ask."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

from fewbit.evaluate.answers import Ask
from fewbit.evaluate.arms import Arm, Arms, Role
from fewbit.records.answers import Answer, AnswererFacts
from fewbit.records.generation import FinishReason

Say = Callable[[Ask], str]


@dataclass(frozen=True)
class Scripted:
    """Says what a function tells it to; a text of `max_tokens` words or more is cut off there."""

    say: Say

    @property
    def facts(self):
        return AnswererFacts(name="scripted", begins="nothing", template="")

    def answer(self, asks, keep):
        for ask in asks:
            words = self.say(ask).split(" ")
            cut = len(words) >= ask.max_tokens
            keep(
                Answer(
                    name=ask.name,
                    text=" ".join(words[: ask.max_tokens]),
                    tokens=min(len(words), ask.max_tokens),
                    finish=FinishReason.LENGTH if cut else FinishReason.STOP,
                    first_token=0.0,
                    gaps=(),
                    seconds=0.0,
                )
            )

    def likelihoods(self, context, continuations):
        raise AssertionError("no likelihoods are asked for")


@dataclass(frozen=True)
class ScriptedParty:
    """What opens as an arm elsewhere, with written answers."""

    say: Say
    fingerprint: str

    @contextmanager
    def open(self, role, room):
        yield Arm(role, self.fingerprint, Scripted(self.say))


def scripted_arms(source: Say, candidate: Say, floor: Say | None = None, work=None) -> Arms:
    said = {Role.SOURCE: source, Role.FLOOR: floor, Role.CANDIDATE: candidate}
    parties = {role: ScriptedParty(say, f"{role.value:0>64}") for role, say in said.items() if say}
    return Arms(parties, work)
