"""What `--draft` names: nothing, what drafts from the text alone, or a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fewbit.errors import MissingError, UsageError

if TYPE_CHECKING:
    from fewbit.engine.loaded import LoadedModel
    from fewbit.engine.loaded_draft import LoadedDraft
    from fewbit.engine.request import Speculation
    from fewbit.model.runner import RunSettings
    from fewbit.records.generation import DraftModelRecord
    from fewbit.speculate.drafts import Draft

NONE = "none"


def _ngram(_: LoadedModel) -> Draft:
    from fewbit.speculate.drafts import NgramDraft

    return NgramDraft()


NAMED: Mapping[str, Callable[[LoadedModel], Draft]] = {"ngram": _ngram}
"""The drafts that need no file of their own; whatever else is named is a model."""


@dataclass(frozen=True)
class OpenedDraft:
    """A draft beside the target; `model` is its model, where it is one."""

    speculation: Speculation | None
    model: LoadedDraft | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about how its model was made ready."""
        from fewbit.records.kernels import kernel_fallbacks
        from fewbit.report.loading import describe_loading

        if self.model is None:
            return ()
        runner = self.model.runner
        lines = (*describe_loading(runner.loading), *kernel_fallbacks(runner.kernels))
        return tuple(f"draft: {line}" for line in lines)

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
    """A draft that is asked for: one of `NAMED`, a model, or (None) nothing."""

    longest: int
    named: Callable[[LoadedModel], Draft] | None = None
    path: Path | None = None

    def opened(self, target: LoadedModel, settings: RunSettings) -> OpenedDraft:
        """Return it beside the target; raises as `load_draft`."""
        from fewbit.engine.loaded_draft import load_draft
        from fewbit.engine.request import Speculation

        if self.named is not None:
            return OpenedDraft(Speculation(self.named(target), self.longest))
        if self.path is None:
            return OpenedDraft(None)
        model = load_draft(self.path, target, settings)
        return OpenedDraft(Speculation(model.draft, self.longest), model)


def chosen_draft(name: str, longest: int) -> ChosenDraft:
    """Return the draft of this name, a model's found and perhaps fetched, but not opened.

    Args:
        name: `none`, one of `NAMED`, or what a user calls a model.
        longest: tokens drafted at once, at most.

    Raises:
        UsageError: it may draft nothing.
        MissingError, DownloadError: there is no such model.
    """
    from fewbit.cli.pull import locate

    if longest < 1:
        raise UsageError(f"--draft-tokens is {longest}; it must be at least 1.")
    if name == NONE:
        return ChosenDraft(longest)
    if name in NAMED:
        return ChosenDraft(longest, named=NAMED[name])
    try:
        return ChosenDraft(longest, path=locate(name))
    except MissingError as error:
        raise MissingError(
            f"The draft {error} Without a model there are: {', '.join((NONE, *NAMED))}."
        ) from error
