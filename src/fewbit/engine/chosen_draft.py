"""What a user names as a draft, found, and opened beside its target.

Nothing; what drafts from the text alone; the model itself, cheaper; a smaller model; or a head that
continues from the model's hidden states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fewbit.engine.loaded import LoadedModel
from fewbit.engine.loaded_draft import LoadedDraft, load_draft
from fewbit.engine.loaded_head import LoadedHead, load_head
from fewbit.engine.named_drafts import (
    FROM_TEXT,
    NESTED,
    SUFFIX,
    WITHOUT_MODEL,
    OpenDraft,
    both,
    named_draft,
)
from fewbit.engine.request import Speculation
from fewbit.errors import BadFileError, MissingError, UsageError
from fewbit.model.facts import model_facts
from fewbit.model.head_source import HeadSource, is_head_folder, open_head
from fewbit.model.runner import RunSettings
from fewbit.records.generation import DraftModelRecord
from fewbit.records.kernels import KernelRecord
from fewbit.records.loading import FileStamp, MemoryPlan
from fewbit.speculate.combined import CombinedDraft
from fewbit.speculate.drafts import Draft, kernels_of
from fewbit.speculate.suffix import SuffixDraft

NONE = "none"

MOST_BRANCHES = 32
"""Rows beyond a step's first 16 or so cost as much as steps of their own (measured), and a branch
needs one at least."""

HEAD = "eagle3:"
"""Stands before the folder of a head; a folder whose configuration says so needs it not."""

Locate = Callable[[str], Path]
"""Returns the path of what a user calls a model; may fetch it."""


@dataclass(frozen=True)
class OpenedDraft:
    """A draft beside the target; `model` or `head` is what was opened for it, where it was."""

    speculation: Speculation | None
    model: LoadedDraft | None = None
    head: LoadedHead | None = None

    @property
    def kernels(self) -> tuple[KernelRecord, ...]:
        """What reads each matrix of a draft that is the target with other weights, or a head."""
        return () if self.speculation is None else kernels_of(self.speculation.draft)

    @property
    def record(self) -> DraftModelRecord | None:
        """Its model for a report."""
        if self.model is None:
            return None
        runner = self.model.runner
        facts = model_facts(runner.source)
        return DraftModelRecord(model=facts, kernels=runner.kernels, loading=runner.loading)

    @property
    def memory(self) -> MemoryPlan | None:
        """What its model or head needs beside the target; None where it has neither."""
        if self.model is not None:
            return self.model.runner.loading.memory
        return None if self.head is None else self.head.runner.memory

    def close(self) -> None:
        """Let go of its model's files."""
        if self.model is not None:
            self.model.runner.source.close()

    @property
    def stamps(self) -> tuple[FileStamp, ...]:
        """What tells its files from others."""
        model = () if self.model is None else self.model.runner.source.checkpoint.stamps()
        return model + (() if self.head is None else self.head.source.stamps)


@dataclass(frozen=True)
class ChosenDraft:
    """A draft that is asked for: a named one, a model or a head, one and then the other, or none.

    `nested` says that it reads the upper bits of the target's weights, `branches` how many a
    proposal may have beside its chain.
    """

    longest: int
    named: OpenDraft | None = None
    path: Path | None = None
    head: HeadSource | None = None
    nested: bool = False
    branches: int = 0

    def target_settings(self, settings: RunSettings) -> RunSettings:
        """Return how a target is to be loaded for it that would be as `settings` say without."""
        states = settings.states if self.head is None else self.head.config.taps
        return replace(settings, nested=settings.nested or self.nested, states=states)

    def opened(self, target: LoadedModel, settings: RunSettings) -> OpenedDraft:
        """Return it beside the target, which was loaded as `target_settings` says.

        Raises:
            FewbitError: as `load_draft` and `load_head`.
        """
        named = None if self.named is None else self.named(target)
        if self.head is not None:
            head = load_head(self.head, target, settings.sequences)
            return OpenedDraft(self._speculation(named, head.draft), head=head)
        if self.path is not None:
            model = load_draft(self.path, target, settings)
            return OpenedDraft(self._speculation(named, model.draft), model)
        return OpenedDraft(None if named is None else self._alone(named))

    def again(self, opened: OpenedDraft, target: LoadedModel) -> Speculation | None:
        """Return what was opened once more, knowing no sequence yet."""
        named = None if self.named is None else self.named(target)
        own = opened.head or opened.model
        if own is not None:
            return self._speculation(named, own.new_draft())
        return None if named is None else self._alone(named)

    def _speculation(self, named: Draft | None, own: Draft) -> Speculation:
        return self._alone(own if named is None else CombinedDraft(named, own))

    def _alone(self, draft: Draft) -> Speculation:
        return Speculation(draft, self.longest, branches=self.branches)


def choose_draft(
    name: str, longest: int, locate: Locate, text: Path | None = None, *, branches: int = 0
) -> ChosenDraft:
    """Return the draft of this name; a model's is found and perhaps fetched, but not opened.

    Args:
        name: `none`, a name of `engine.named_drafts`, what a user calls a model, the folder of a
            head, or two of them joined by `+`.
        longest: tokens drafted at once, at most.
        locate: finds a model.
        text: a UTF-8 file that a suffix draft looks in too.
        branches: that a proposal has beside its chain, at most.

    Raises:
        UsageError: it may draft nothing, would not look at the text, or its first part is none that
            drafts from the text.
        MissingError, BadFileError, DownloadError: there is no such model or text.
        UnsupportedError: a head of a kind that is not read.
    """
    chosen = ChosenDraft(_at_least_one(longest), branches=_at_most(branches, longest))
    first, plus, rest = name.partition("+")
    if text is not None and first != SUFFIX:
        raise UsageError(
            f"The draft {name} looks at no other text, and one is given ({text}); use the draft "
            f"{SUFFIX}, or leave the text out."
        )
    if name == NONE:
        return chosen
    nested = NESTED in name.split("+")
    named = named_draft(first) if text is None else partial(_suffix, _read(text))
    if named is None:
        return _with_file(chosen, name, locate)
    if not plus:
        return replace(chosen, named=named, nested=nested)
    if first not in FROM_TEXT:
        raise UsageError(
            f"The draft {name} asks {first} first, which would run for every token; of two drafts "
            f"the first is {' or '.join(FROM_TEXT)}."
        )
    if not rest:
        raise UsageError(f"The draft {name} names nothing behind the plus; name a second draft.")
    second = named_draft(rest)
    if second is not None:
        return replace(chosen, named=both(named, second), nested=nested)
    return _with_file(replace(chosen, named=named), rest, locate)


def _with_file(chosen: ChosenDraft, name: str, locate: Locate) -> ChosenDraft:
    """Return a choice with the model or the head of this name."""
    try:
        path = locate(name.removeprefix(HEAD))
    except MissingError as error:
        raise MissingError(
            f"The draft {error} Without a model there are: {', '.join((NONE, *WITHOUT_MODEL))}."
        ) from error
    return _opening(chosen, path, head=name.startswith(HEAD))


def choose_file(path: Path, longest: int, *, branches: int = 0) -> ChosenDraft:
    """Return a model or a head as the draft; errors as of `choose_draft`."""
    chosen = ChosenDraft(_at_least_one(longest), branches=_at_most(branches, longest))
    return _opening(chosen, path)


def _opening(chosen: ChosenDraft, path: Path, *, head: bool = False) -> ChosenDraft:
    if head or is_head_folder(path):
        return replace(chosen, head=open_head(path))
    return replace(chosen, path=path)


def _at_least_one(longest: int) -> int:
    if longest < 1:
        raise UsageError(f"{longest} tokens are to be drafted at most; it must be at least 1.")
    return longest


def _at_most(branches: int, longest: int) -> int:
    if not 0 <= branches <= MOST_BRANCHES:
        raise UsageError(
            f"A draft of {longest} tokens is to have {branches} branches at most; give 0 to "
            f"{MOST_BRANCHES}."
        )
    return branches


def _suffix(text: str, target: LoadedModel) -> Draft:
    return SuffixDraft(target.text_prompt(text))


def _read(text: Path) -> str:
    try:
        return text.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingError(
            f"The draft's text {text} cannot be read ({error.strerror}); give a text file."
        ) from error
    except UnicodeDecodeError as error:
        raise BadFileError(
            f"The draft's text {text} is not UTF-8 text; give a text file."
        ) from error
