"""Arguments of a script, checked before they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewbit.engine.loaded import LoadedModel
from fewbit.errors import MissingError, RequestError
from fewbit.model.runner import Runner

Message: TypeAlias = Mapping[str, str]
"""A message of a conversation: `role` (system, user, assistant) and `content`."""

Prompt: TypeAlias = str | Sequence[Message]
"""A text to be continued as it is, or a conversation to be answered."""


def require_whole(name: str, value: object) -> None:
    """Refuse what is neither a whole number nor None; raises RequestError."""
    if value is not None and not isinstance(value, int):
        raise RequestError(f"{name} is {value!r}; give a whole number, or None.")


def strings_of(stop: object) -> tuple[str, ...]:
    """Return the strings that end a text; raises RequestError."""
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, Sequence) or not all(isinstance(string, str) for string in stop):
        raise RequestError(f"stop is {stop!r}; give a string or a list of strings.")
    return tuple(stop)


def prompt_ids(loaded: LoadedModel, prompt: Prompt) -> tuple[int, ...]:
    """Return the ids of a prompt.

    Raises:
        RequestError: it is none.
        MissingError: messages, and the model has no chat template.
        TemplateError: the template failed on these messages.
    """
    if isinstance(prompt, str):
        return loaded.text_prompt(prompt)
    messages = _checked_messages(prompt)
    if loaded.template is None:
        raise MissingError(
            f"{loaded.runner.source.path} has no chat template; give the prompt as a string, or "
            "load an instruct model."
        )
    return loaded.chat_prompt(messages)


def _checked_messages(prompt: object) -> list[Message]:
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise RequestError(
            f"The prompt is of type {type(prompt).__name__}; give a string, or a list of messages "
            'such as [{"role": "user", "content": "..."}].'
        )
    if not prompt:
        raise RequestError("The prompt has no messages; give at least one.")
    for number, message in enumerate(prompt):
        is_text = isinstance(message, Mapping) and all(
            isinstance(message.get(key), str) for key in ("role", "content")
        )
        if not is_text:
            raise RequestError(
                f"Message {number} of the prompt is {str(message)[:80]!r}; a message has the "
                "strings `role` and `content`."
            )
    return list(prompt)


def checked_ids(runner: Runner, tokens: ArrayLike, first: int) -> NDArray[np.int32]:
    """Return tokens as int32 [n]; raises RequestError, also for a `first` that is no position."""
    try:
        given = np.asarray(tokens)
    except ValueError as error:
        raise RequestError(f"The tokens are no row of ids ({error}); give a list of int.") from None
    if given.size and given.dtype.kind not in "iu":
        raise RequestError(f"The tokens are of type {given.dtype}; give token ids, integers.")
    ids = runner.checked(given)
    if not isinstance(first, int) or not 0 <= first < len(ids):
        raise RequestError(
            f"first is {first!r}, and the sequence has positions 0 to {len(ids) - 1}; give one of "
            "them."
        )
    return ids
