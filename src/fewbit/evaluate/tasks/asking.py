"""Asking an arm the items of a task; what it says is kept, so that no item is asked twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fewbit.errors import FaultError, FewbitError
from fewbit.evaluate.answers import Answerer, Ask, Prompt, conversation
from fewbit.evaluate.tasks.items import ChoiceItem, Item
from fewbit.evaluate.tasks.spec import PromptKind, Task, key_of
from fewbit.records.answers import Answer, Likelihood
from fewbit.records.kept import Kept
from fewbit.records.tasks import ChoiceOutcome, TaskOutcome

Done = Callable[[int], None]
"""Told how many items of a task have an outcome."""


def ask_task(task: Task, answerer: Answerer, kept: Kept, done: Done) -> None:
    """Keep what an arm makes of every item that is not kept yet, by `key_of` it.

    Raises:
        RequestError: an item does not fit the model's context; its name is in the message.
        MissingError: the task asks as a conversation, and there is no chat template.
        NumericalError: the model gives values that are not finite.
    """
    left = _left(task, kept)
    before = len(task.items) - len(left)
    done(before)
    if task.spec.kind == "choice":
        _choose(task, left, answerer, kept, lambda number: done(before + number))
    else:
        _answer(task, left, answerer, kept, lambda number: done(before + number))


def outcomes(task: Task, kept: Kept) -> dict[str, TaskOutcome]:
    """Return what is kept of an arm on a task, by the item's name."""
    found = kept.read(TaskOutcome)
    return {item.name: found[key_of(item)] for item in task.items}


def is_complete(task: Task, kept: Kept) -> bool:
    """Return whether every item has an outcome."""
    return not _left(task, kept)


def _left(task: Task, kept: Kept) -> list[Item]:
    """Return items without an outcome; of those that ask the same, one."""
    have = kept.names()
    wanted = {key: item for item in task.items if (key := key_of(item)) not in have}
    return list(wanted.values())


def prompt_of(text: str, kind: PromptKind) -> Prompt:
    """Return a prompt as the answerer takes it."""
    return text if kind is PromptKind.TEXT else conversation(text)


def _choose(task: Task, left: Sequence[Item], answerer: Answerer, kept: Kept, done: Done) -> None:
    for number, item in enumerate(left, start=1):
        if not isinstance(item, ChoiceItem):
            raise FaultError(f"the item '{item.name}' of '{task.spec.name}' has no options.")
        with named(f"Item '{item.name}' of the task '{task.spec.name}'"):
            outcome = ChoiceOutcome(likelihoods=_likelihoods(item, task.spec.asked_as, answerer))
        kept.add(key_of(item), TaskOutcome(choice=outcome))
        done(number)


def _answer(task: Task, left: Sequence[Item], answerer: Answerer, kept: Kept, done: Done) -> None:
    kind = task.spec.asked_as
    asks = [
        Ask(key_of(item), prompt_of(item.prompt, kind), task.spec.max_tokens, stop=task.spec.stop)
        for item in left
    ]

    counted = itertools.count(1)

    def keep(answer: Answer) -> None:
        kept.add(answer.name, TaskOutcome(answer=answer))
        done(next(counted))

    with named(f"The task '{task.spec.name}'"):
        answerer.answer(asks, keep)


@contextmanager
def named(what: str) -> Iterator[None]:
    """Put before a message what was asked when it came."""
    try:
        yield
    except FewbitError as error:
        raise type(error)(f"{what}: {error}") from error


def _likelihoods(item: ChoiceItem, kind: PromptKind, answerer: Answerer) -> tuple[Likelihood, ...]:
    """Return one for each option; an answer in a conversation begins without a space."""
    chat = kind is PromptKind.CHAT
    texts = [text.lstrip() if chat else text for text in item.continuations]
    found: list[Likelihood] = []
    for context in item.contexts:
        found += answerer.likelihoods(prompt_of(context, kind), texts)
    return tuple(found)
