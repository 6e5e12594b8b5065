"""What the built-in suite asks, slice by slice, read from the suite itself; no model is run.

The axes that ask questions are run on arms that answer nothing, and texts are cut by a tokenizer
that counts four characters as a token. What comes of it has the slices of a real evaluation with
their items, clusters and weights; only values mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import cast

import numpy as np

from fewbit.evaluate.answers import Ask, Prompt
from fewbit.evaluate.arms import PAIR, Arm, Arms, Role, Room
from fewbit.evaluate.axes import AxisOptions
from fewbit.evaluate.language import conversations as texts
from fewbit.evaluate.language.axis import LanguageAxis
from fewbit.evaluate.language.divergence import DTYPES, Comparison
from fewbit.evaluate.language.passages import CHAT, LANGUAGES, Cut, short_passages, text_passages
from fewbit.evaluate.language.positions import table
from fewbit.evaluate.language.summary import Measured
from fewbit.evaluate.language.summary import slices as language_slices
from fewbit.evaluate.long_context.axis import LongContextAxis, put_together
from fewbit.evaluate.long_context.recall import questions_of
from fewbit.evaluate.long_context.summary import Recalls, along_a_document, recalled
from fewbit.evaluate.machine.memory_axis import MemoryAxis
from fewbit.evaluate.machine.speed_axis import SpeedAxis
from fewbit.evaluate.safety.axis import safety_axis
from fewbit.evaluate.tasks.axis import tasks_axis
from fewbit.evaluate.tools.axis import ToolsAxis
from fewbit.progress import unwatched
from fewbit.records.answers import Answer, AnswererFacts, Likelihood
from fewbit.records.generation import FinishReason
from fewbit.records.long_context import Recalled
from fewbit.records.measurement import Item, Measure, Slice
from fewbit.tokens.tokenizer import Tokenizer

CHARACTERS = 4
"""Of a token, about."""

_LEVEL = 0.95


def built_in_slices() -> tuple[Slice, ...]:
    """Return every slice that has a margin by default, and others of the same axes."""
    return (*_language(), *_questions(), *_long_context(), *_machine())


class _Mute:
    """Answers nothing, whatever is asked."""

    facts = AnswererFacts(name="nobody", begins="nothing", template="of nobody")

    def answer(self, asks: Sequence[Ask], keep: Callable[[Answer], None]) -> None:
        for ask in asks:
            keep(
                Answer(
                    name=ask.name,
                    text="",
                    tokens=1,
                    finish=FinishReason.STOP,
                    first_token=None,
                    gaps=(),
                    seconds=0.0,
                )
            )

    def unscored(self, context: Prompt) -> str:
        """Return nothing: all are scored."""
        return ""

    def likelihoods(self, context: Prompt, continuations: Sequence[str]) -> list[Likelihood]:
        return [Likelihood(logprob=-1.0, tokens=1, greedy=False) for _ in continuations]


@dataclass(frozen=True)
class _Nobody:
    fingerprint: str

    @contextmanager
    def open(self, role: Role, _room: Room) -> Iterator[Arm]:
        yield Arm(role, self.fingerprint, _Mute())


def _questions() -> Iterator[Slice]:
    arms = Arms({role: _Nobody(role.value) for role in PAIR})
    for axis in (tasks_axis(), safety_axis(), ToolsAxis()):
        yield from axis.run(arms, unwatched).slices


class _Counting:
    """As much of a tokenizer as cutting a text needs."""

    behaviour = SimpleNamespace(prefix=())

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        del add_special
        return [0] * -(-len(text) // CHARACTERS)


_COUNTING = cast(Tokenizer, _Counting())


def _nothing(count: int) -> Comparison:
    return Comparison(
        *(np.zeros(count, DTYPES.get(f.name, np.float64)) for f in fields(Comparison))
    )


def _language() -> tuple[Slice, ...]:
    axis = LanguageAxis(documents=AxisOptions().documents)
    cut = Cut(windows=axis.windows, tokens=axis.window_tokens, whole=axis.whole_windows)
    chats = texts.chats_text(axis.conversations)
    passages = [
        *text_passages(_COUNTING, axis.documents, cut),
        *short_passages(_COUNTING, chats, CHAT, axis.window_tokens),
        *short_passages(_COUNTING, axis.passages, LANGUAGES, axis.passage_tokens),
    ]
    count = sum(len(passage.positions) for passage in passages)
    return language_slices(Measured(table(passages, _nothing(count), None), _LEVEL))


def _long_context() -> Iterator[Slice]:
    axis = LongContextAxis(documents=AxisOptions().documents)
    asked = questions_of(list(axis.haystacks(_COUNTING, axis.longest)))
    missed = {one.name: Recalled(failed=True, said="", loss=0.0) for one in asked}
    answers = dict.fromkeys(PAIR, missed)
    yield from recalled(Recalls(asked, answers, axis.judge.words, axis.longest))[0]
    passage, owners = put_together(_COUNTING, axis.documents, axis.divergence)
    nothing = _nothing(len(passage.positions))
    yield along_a_document(passage, owners, nothing, None, _LEVEL).slice


def _machine() -> Iterator[Slice]:
    """Yield what is judged of speed and memory: as many turns and processes as are run."""
    speed, memory = SpeedAxis(), MemoryAxis()
    for name in ("decode", "first-token"):
        for sequences in speed.concurrency:
            yield _ratio(f"speed/{name}/{sequences}", "turn", speed.turns)
    yield _ratio("speed/task", "question", speed.questions)
    for name in ("weights", "kv", *(f"peak/{n}" for n in memory.concurrency)):
        yield _ratio(f"memory/{name}", "process", memory.processes)


def _ratio(name: str, what: str, count: int) -> Slice:
    items = [Item(name=f"{what} {i}", cluster=f"{what} {i}", source=1.0, candidate=1.0)
             for i in range(count)]  # fmt: skip
    axis = name.partition("/")[0]
    return Slice(
        name=name, axis=axis, measure=Measure.RATIO, unit="", title=what, items=tuple(items)
    )
