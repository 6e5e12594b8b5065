"""What `--draft` names: nothing, what drafts from the text alone, or a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fewbit.engine.named_drafts import (
    FROM_TEXT,
    NESTED,
    SUFFIX,
    WITHOUT_MODEL,
    both,
    named_draft,
)
from fewbit.errors import BadFileError, MissingError, UsageError

if TYPE_CHECKING:
    from fewbit.engine.loaded import LoadedModel
    from fewbit.engine.loaded_draft import LoadedDraft
    from fewbit.engine.request import Speculation
    from fewbit.model.runner import RunSettings
    from fewbit.records.generation import DraftModelRecord
    from fewbit.records.kernels import KernelRecord
    from fewbit.speculate.drafts import Draft

__all__ = ["NESTED", "ChosenDraft", "OpenedDraft", "chosen_draft"]

_UNPREPARED = (
    "it runs as its file has it; what 'fewbit draft prepare' makes of it costs less a token."
)

NONE = "none"


def _suffix(text: Path, target: LoadedModel) -> Draft:
    from fewbit.speculate.suffix import SuffixDraft

    return SuffixDraft(target.text_prompt(_read(text)))


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
        whole = (_UNPREPARED,) if runner.config.head_rows is None else ()
        return tuple(f"draft: {line}" for line in (*loading, *whole, *differences))

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
    """A draft that is asked for: a named one, a model, one and then the other, or nothing."""

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
        name: `none`, a name of `engine.named_drafts`, what a user calls a model, or two of them
            joined by `+`.
        longest: tokens drafted at once, at most.
        text: a UTF-8 file that a suffix draft looks in too.

    Raises:
        UsageError: it may draft nothing, would not look at the text, or its first part is none that
            drafts from the text.
        MissingError, DownloadError: there is no such model.
    """
    from fewbit.cli.pull import locate

    if longest < 1:
        raise UsageError(f"--draft-tokens is {longest}; it must be at least 1.")
    first, _, rest = name.partition("+")
    if text is not None and first != SUFFIX:
        raise UsageError(
            f"--draft-text is {text} and --draft {name}, which looks at no other text; use "
            f"--draft {SUFFIX}, or leave --draft-text out."
        )
    if name == NONE:
        return ChosenDraft(longest)
    named = named_draft(first) if text is None else partial(_suffix, text)
    if named is not None and rest and first not in FROM_TEXT:
        raise UsageError(
            f"--draft {name} asks {first} first, which would run for every token; of two drafts "
            f"the first is {' or '.join(FROM_TEXT)}."
        )
    second = named_draft(rest) if named is not None and rest else None
    if named is not None and second is not None:
        named, rest = both(named, second), ""
    if named is not None and not rest:
        return ChosenDraft(longest, named=named)
    try:
        return ChosenDraft(longest, named=named, path=locate(rest if named else name))
    except MissingError as error:
        raise MissingError(
            f"The draft {error} Without a model there are: {', '.join((NONE, *WITHOUT_MODEL))}."
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
