"""The drafts that have a name and no file: from the text alone, or the model itself, cheaper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from fewbit.engine.loaded import LoadedModel
from fewbit.errors import UsageError
from fewbit.formats.registry import parse_format
from fewbit.speculate.combined import CombinedDraft
from fewbit.speculate.drafts import Draft, NgramDraft
from fewbit.speculate.early_exit import early_exit_draft
from fewbit.speculate.low_bit import low_bit_draft, nested_draft
from fewbit.speculate.suffix import SuffixDraft

NESTED = "nested"
"""Its target must be loaded with `RunSettings.nested`."""
NGRAM, SUFFIX = "ngram", "suffix"
FROM_TEXT = (NGRAM, SUFFIX)
"""Those that cost next to nothing to ask, so that another may come after them."""

OpenDraft: TypeAlias = Callable[[LoadedModel], Draft]
"""Makes a draft beside a loaded target."""


def _ngram(_: LoadedModel) -> Draft:
    return NgramDraft()


def _suffix(_: LoadedModel) -> Draft:
    return SuffixDraft(())


def _nested(target: LoadedModel) -> Draft:
    served = target.served
    return nested_draft(target.runner, served.vocabulary, served.threads, target.ends)


NAMED: Mapping[str, OpenDraft] = {NGRAM: _ngram, SUFFIX: _suffix, NESTED: _nested}
"""The drafts that need no file of their own; whatever else is named is a model."""


def _exit(value: str) -> OpenDraft:
    if not value.isdecimal():
        raise UsageError(
            f"The draft exit:{value} names no number of layers; give one, as in exit:8."
        )

    def opened(target: LoadedModel) -> Draft:
        served = target.served
        return early_exit_draft(
            target.runner, int(value), served.vocabulary, served.threads, target.ends
        )

    return opened


def _low_bit(value: str) -> OpenDraft:
    form = parse_format(value)

    def opened(target: LoadedModel) -> Draft:
        served = target.served
        return low_bit_draft(target.runner, form, served.vocabulary, served.threads, target.ends)

    return opened


VALUED: Mapping[str, Callable[[str], OpenDraft]] = {
    "exit": _exit,
    "low-bit": _low_bit,
}
"""The same that take a value behind a colon."""


WITHOUT_MODEL = (*NAMED, "exit:8", "low-bit:q4_0")
"""Names to choose from, for messages."""


def named_draft(name: str) -> OpenDraft | None:
    """Return what makes the draft of a name, beside a loaded target; None where a model is named.

    Raises:
        UsageError, UnsupportedError: a value behind the colon that is no number or no format.
    """
    kind, colon, value = name.partition(":")
    return VALUED[kind](value) if colon and kind in VALUED else NAMED.get(name)


def both(first: OpenDraft, second: OpenDraft) -> OpenDraft:
    """Return what makes one draft of two: the second where the first has nothing.

    The first is one `FROM_TEXT`.
    """
    return lambda target: CombinedDraft(first(target), second(target))
