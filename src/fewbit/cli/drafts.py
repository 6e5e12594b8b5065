"""What `--draft` names: nothing, what drafts from the text alone, or a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fewbit.errors import BadFileError, MissingError, UsageError

if TYPE_CHECKING:
    from fewbit.engine.loaded import LoadedModel
    from fewbit.engine.loaded_draft import LoadedDraft
    from fewbit.engine.request import Speculation
    from fewbit.model.runner import RunSettings
    from fewbit.records.generation import DraftModelRecord
    from fewbit.records.kernels import KernelRecord
    from fewbit.speculate.drafts import Draft

NONE = "none"
NESTED = "nested"
SUFFIX = "suffix"


def _ngram(_: LoadedModel) -> Draft:
    from fewbit.speculate.drafts import NgramDraft

    return NgramDraft()


def _suffix(target: LoadedModel, text: Path | None = None) -> Draft:
    from fewbit.speculate.suffix import SuffixDraft

    return SuffixDraft(() if text is None else target.text_prompt(_read(text)))


def _nested(target: LoadedModel) -> Draft:
    from fewbit.speculate.low_bit import nested_draft

    served = target.served
    return nested_draft(target.runner, served.vocabulary, served.threads)


NAMED: Mapping[str, Callable[[LoadedModel], Draft]] = {
    "ngram": _ngram,
    SUFFIX: _suffix,
    NESTED: _nested,
}
"""The drafts that need no file of their own; whatever else is named is a model."""


def _exit(value: str) -> Callable[[LoadedModel], Draft]:
    from fewbit.speculate.early_exit import early_exit_draft

    if not value.isdecimal():
        raise UsageError(f"--draft exit:{value} names no number of layers; give one, as in exit:8.")

    def opened(target: LoadedModel) -> Draft:
        served = target.served
        return early_exit_draft(target.runner, int(value), served.vocabulary, served.threads)

    return opened


def _low_bit(value: str) -> Callable[[LoadedModel], Draft]:
    from fewbit.formats.registry import parse_format
    from fewbit.speculate.low_bit import low_bit_draft

    form = parse_format(value)

    def opened(target: LoadedModel) -> Draft:
        served = target.served
        return low_bit_draft(target.runner, form, served.vocabulary, served.threads)

    return opened


VALUED: Mapping[str, Callable[[str], Callable[[LoadedModel], Draft]]] = {
    "exit": _exit,
    "low-bit": _low_bit,
}
"""The same that take a value behind a colon."""


_EXAMPLES = ("exit:8", "low-bit:q4_0")


def named_draft(name: str) -> Callable[[LoadedModel], Draft] | None:
    """Return what makes the draft of a name, beside a loaded target; None where a model is named.

    Raises:
        UsageError, UnsupportedError: a value behind the colon that is no number or no format.
    """
    kind, colon, value = name.partition(":")
    return VALUED[kind](value) if colon and kind in VALUED else NAMED.get(name)


def _both(
    first: Callable[[LoadedModel], Draft], second: Callable[[LoadedModel], Draft]
) -> Callable[[LoadedModel], Draft]:
    from fewbit.speculate.combined import CombinedDraft

    return lambda target: CombinedDraft(first(target), second(target))


@dataclass(frozen=True)
class OpenedDraft:
    """A draft beside the target; `model` is its model, where it is one."""

    speculation: Speculation | None
    model: LoadedDraft | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about how its model was made ready, and what sets it apart."""
        from fewbit.records.kernels import kernel_fallbacks
        from fewbit.report.loading import describe_draft_kernels, describe_loading
        from fewbit.report.pair import describe_difference

        if self.model is None:
            return tuple(describe_draft_kernels(self.kernels))
        runner = self.model.runner
        differences = (describe_difference(found) for found in self.model.differences)
        loading = (*describe_loading(runner.loading), *kernel_fallbacks(runner.kernels))
        return tuple(f"draft: {line}" for line in (*loading, *differences))

    @property
    def kernels(self) -> tuple[KernelRecord, ...]:
        """What reads each matrix of a draft that is the target itself with other weights."""
        from fewbit.speculate.shared_store import kernels_of

        return () if self.speculation is None else kernels_of(self.speculation.draft)

    @property
    def record(self) -> DraftModelRecord | None:
        """Its model for a report."""
        from fewbit.model.facts import model_facts
        from fewbit.records.generation import DraftModelRecord

        if self.model is None:
            return None
        runner = self.model.runner
        facts = model_facts(runner.source)
        return DraftModelRecord(model=facts, kernels=runner.kernels, loading=runner.loading)


@dataclass(frozen=True)
class ChosenDraft:
    """A draft that is asked for: one of `NAMED`, a model, one and then the other, or nothing."""

    longest: int
    named: Callable[[LoadedModel], Draft] | None = None
    path: Path | None = None

    def opened(self, target: LoadedModel, settings: RunSettings) -> OpenedDraft:
        """Return it beside the target; raises as `load_draft`."""
        from fewbit.engine.loaded_draft import load_draft
        from fewbit.engine.request import Speculation
        from fewbit.speculate.combined import CombinedDraft

        named = None if self.named is None else self.named(target)
        if self.path is None:
            return OpenedDraft(None if named is None else Speculation(named, self.longest))
        model = load_draft(self.path, target, settings)
        draft = model.draft if named is None else CombinedDraft(named, model.draft)
        return OpenedDraft(Speculation(draft, self.longest), model)


def chosen_draft(name: str, longest: int, text: Path | None = None) -> ChosenDraft:
    """Return the draft of this name, a model's found and perhaps fetched, but not opened.

    Args:
        name: `none`, one of `NAMED` or `VALUED`, what a user calls a model, or two joined by `+`.
        longest: tokens drafted at once, at most.
        text: a UTF-8 file that a suffix draft looks in too.

    Raises:
        UsageError: it may draft nothing, or would not look at the text.
        MissingError, DownloadError: there is no such model.
    """
    from fewbit.cli.pull import locate

    if longest < 1:
        raise UsageError(f"--draft-tokens is {longest}; it must be at least 1.")
    if name == NONE:
        return ChosenDraft(longest)
    first, _, rest = name.partition("+")
    named = named_draft(first)
    if text is not None:
        if first != SUFFIX:
            raise UsageError(
                f"--draft-text is {text} and --draft {name}, which looks at no other text; use "
                f"--draft {SUFFIX}, or leave --draft-text out."
            )
        named = partial(_suffix, text=text)
    second = named_draft(rest) if named is not None and rest else None
    if named is not None and second is not None:
        named, rest = _both(named, second), ""
    if named is not None and not rest:
        return ChosenDraft(longest, named=named)
    try:
        return ChosenDraft(longest, named=named, path=locate(rest if named else name))
    except MissingError as error:
        raise MissingError(
            f"The draft {error} Without a model there are: {', '.join((NONE, *NAMED, *_EXAMPLES))}."
        ) from error


def _read(text: Path) -> str:
    try:
        return text.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingError(
            f"--draft-text {text} cannot be read ({error.strerror}); give a text file."
        ) from error
    except UnicodeDecodeError as error:
        raise BadFileError(f"--draft-text {text} is not UTF-8 text; give a text file.") from error
