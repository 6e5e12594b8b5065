"""The arms of a comparison: the source, the source perturbed within its arithmetic, the candidate.

An arm is opened by who needs it and for as long as it needs it, so that an axis which takes much
memory has it. What decides an arm's outcomes is in its fingerprint: every file of this program too,
since what another build answered says nothing of this one. How many sequences it serves at once is
not, since a row has the same bits beside whatever others (row invariance).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Protocol

from fewbit.engine.loaded import LoadedModel
from fewbit.errors import UnsupportedError
from fewbit.evaluate.answers import Answerer, EngineAnswerer
from fewbit.evaluate.conditions import processor
from fewbit.evaluate.identity import Subject
from fewbit.evaluate.subject import open_subject
from fewbit.model.runner import RunSettings, runner_of
from fewbit.records.kept import Kept, file_of, fingerprint, open_kept, program_digest
from fewbit.runtime.native import threads_of
from fewbit.tokens.chat_template import ChatTemplate
from fewbit.tokens.identity import fingerprint as tokenizer_fingerprint


class Role(Enum):
    """What an arm stands for."""

    SOURCE = "source"
    FLOOR = "floor"
    """The source under another kernel or another precision: what "the same" costs here."""
    CANDIDATE = "candidate"


PAIR = (Role.SOURCE, Role.CANDIDATE)
"""The two that are compared; the floor says what a difference between them is worth."""


@dataclass(frozen=True)
class ArmModel:
    """The model of an arm that runs in this process."""

    subject: Subject
    loaded: LoadedModel
    settings: RunSettings


@dataclass(frozen=True)
class Arm:
    """An arm that is open."""

    role: Role
    fingerprint: str
    answerer: Answerer
    model: ArmModel | None = None
    """None for what runs elsewhere, as behind an endpoint."""

    @property
    def subject(self) -> Subject:
        """The model as a party to a comparison; raises UnsupportedError where it runs elsewhere."""
        return self._here.subject

    @property
    def loaded(self) -> LoadedModel:
        """The model, ready to run; raises UnsupportedError where it runs elsewhere."""
        return self._here.loaded

    @property
    def settings(self) -> RunSettings:
        """How it runs; raises UnsupportedError where it runs elsewhere."""
        return self._here.settings

    @property
    def _here(self) -> ArmModel:
        if self.model is None:
            raise UnsupportedError(
                f"The {self.role.value} is {self.answerer.facts.name}, which runs elsewhere, and "
                "this axis needs its logits or its weights; leave the axis out."
            )
        return self.model


@dataclass(frozen=True, kw_only=True)
class Room:
    """What an axis needs room for."""

    context: int | None = None
    """Positions a sequence may take, fewer where the model was made for fewer; None for the
    model's own, at most `DEFAULT_CONTEXT`."""
    sequences: int = 1
    """Of full context, at once."""


class Party(Protocol):
    """What an arm is opened from."""

    @property
    def fingerprint(self) -> str:
        """What decides its outcomes, hashed."""
        ...

    def open(self, role: Role, room: Room) -> AbstractContextManager[Arm]:
        """Make it ready to be asked, until the block ends."""
        ...


@dataclass(frozen=True)
class LocalParty:
    """A model on disk, run by our engine. `settings` say nothing of context and sequences."""

    path: Path
    settings: RunSettings
    fingerprint: str

    @contextmanager
    def open(self, role: Role, room: Room) -> Iterator[Arm]:
        """Load it; raises as `open_subject` and `runner_of`."""
        subject = open_subject(self.path)
        try:
            settings = _settings_in(self.settings, room, subject.model.config.context)
            loaded = load_subject(subject, settings)
            answerer = EngineAnswerer(loaded, name=role.value, sequences=room.sequences)
            yield Arm(role, self.fingerprint, answerer, ArmModel(subject, loaded, settings))
        finally:
            subject.model.checkpoint.close()


def local_party(subject: Subject, settings: RunSettings) -> LocalParty:
    """Return an open model as a party to be opened again."""
    return LocalParty(
        subject.model.path,
        settings,
        fingerprint(
            subject.digest,
            tokenizer_fingerprint(subject.tokenizer),
            subject.tokenizer.behaviour.prefix,
            sorted(subject.tokenizer.special.end_of_generation),
            subject.chat_template,
            subject.model.config,
            _rounding(subject),
            _deciding(settings),
            threads_of(settings.threads),
            processor(),
            program_digest(),
        ),
    )


def _settings_in(settings: RunSettings, room: Room, most: int) -> RunSettings:
    context = None if room.context is None else min(room.context, most)
    return replace(settings, context=context, sequences=room.sequences)


def _rounding(subject: Subject) -> list[tuple[str, str, str, float | None]]:
    """Return how each layer's input is rounded, which an artefact says beside its bytes."""
    return [
        (name, str(info.format), str(info.activations), info.input_scale)
        for name, info in subject.model.checkpoint.tensors.items()
    ]


def _deciding(settings: RunSettings) -> RunSettings:
    """Return settings without those that no outcome depends on; threads decide times alone."""
    return replace(
        settings, context=None, sequences=1, threads=None, keep_packed=False, strict=False
    )


def one_day() -> datetime:
    """Return what templates are told of the time: every arm is asked the same on any day."""
    return datetime(2025, 1, 1)


def load_subject(subject: Subject, settings: RunSettings) -> LoadedModel:
    """Make an opened model ready to generate; raises as `runner_of`."""
    template = subject.chat_template
    special = subject.tokenizer.special_texts
    chat = None if template is None else ChatTemplate(template, special, clock=one_day)
    return LoadedModel(runner_of(subject.model, settings), subject.tokenizer, chat)


@dataclass(frozen=True)
class Arms:
    """All arms of one evaluation."""

    parties: Mapping[Role, Party]
    work: Path | None = None
    """Where outcomes are kept; None keeps them no longer than this lives."""
    _kept: dict[tuple[Role, str], Kept] = field(default_factory=dict, repr=False)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The arms there are, source first; the floor may be absent."""
        return tuple(role for role in Role if role in self.parties)

    def open(self, role: Role, room: Room | None = None) -> AbstractContextManager[Arm]:
        """Open an arm for a block; several may be open together.

        Raises:
            UsageError: there is too little memory.
            BadFileError, MissingError, UnsupportedError, KernelError: it cannot be loaded.
        """
        return self.parties[role].open(role, room or Room())

    def local(self, role: Role) -> LocalParty:
        """Return where an arm's model lies and how it is run, with nothing loaded.

        Raises:
            UnsupportedError: it runs elsewhere.
        """
        party = self.parties[role]
        if not isinstance(party, LocalParty):
            raise UnsupportedError(
                f"The {role.value} runs elsewhere, and this axis needs its weights; leave the axis "
                "out."
            )
        return party

    def fingerprint(self, role: Role) -> str:
        """Return what decides an arm's outcomes, hashed."""
        return self.parties[role].fingerprint

    def kept(self, role: Role, axis: str) -> Kept:
        """Return what is kept of an arm's outcomes; each time the same for the same arguments.

        Args:
            role: the arm.
            axis: `kept.fingerprint` of the axis' name and of all that decides its outcomes.
        """
        if (role, axis) not in self._kept:
            file = file_of(self.work, self.fingerprint(role), axis)
            self._kept[role, axis] = open_kept(file)
        return self._kept[role, axis]
