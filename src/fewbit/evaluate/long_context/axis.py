"""The axis of long context: what a model finds in a long text, and how far it diverges along one.

Facts are hidden in filler, and lines stand in lists, of several lengths up to the longest; each is
asked about on every arm. A document of passages from several texts is then run on all arms in
lockstep, up to the model's context where it is not too long to wait for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from fewbit.calibrate.text import Documents, document
from fewbit.calibrate.windows import cut_windows
from fewbit.errors import UnsupportedError, UsageError
from fewbit.evaluate.arms import Arms, Role, Room
from fewbit.evaluate.axis import Brings
from fewbit.evaluate.language.calibrated import refuse_seen
from fewbit.evaluate.language.lockstep import Lockstep, OpenArms
from fewbit.evaluate.language.passages import TEXT, Passage
from fewbit.evaluate.long_context.haystack import Haystack, Ruler, hidden_facts, key_values
from fewbit.evaluate.long_context.recall import Asked, Judge, questions_of, recall
from fewbit.evaluate.long_context.summary import (
    AXIS,
    Along,
    Recalls,
    along_a_document,
    possible_slices,
    recalled,
)
from fewbit.evaluate.subject import open_subject
from fewbit.progress import Progress
from fewbit.records.kept import fingerprint
from fewbit.records.long_context import Recalled
from fewbit.records.measurement import AxisResult
from fewbit.runtime.native import threads_of
from fewbit.runtime.step import PAGE
from fewbit.tokens.tokenizer import Tokenizer

SHORTEST = 256
"""Positions that a model must have at least."""

PIECES = 16
"""Passages that the document of the divergence is put together from: as many clusters."""

_SHARES = ((4, 14), (2, 4), (1, 2))
"""By which number the longest length is divided, and how many texts of that length there are."""

_RESERVES = {Judge.CHOICE: 8, Judge.ANSWER: 192}
"""Tokens beside text and question: of a conversation its template and the answer's."""

_SEQUENCES = {Judge.CHOICE: 2, Judge.ANSWER: 4}
"""Sequences of full length that an arm has room for."""


@dataclass(frozen=True, kw_only=True)
class LongContextAxis:
    """How long the texts are, and how answers are judged.

    Raises:
        UsageError: a length below `SHORTEST`.
    """

    documents: Documents
    """What the document of the divergence is put together from."""
    longest: int = 2048
    """Tokens of the longest text that is asked about; no more than the model was made for."""
    divergence: int = 4096
    """Tokens of the document that divergence is measured along; likewise."""
    judge: Judge = Judge.CHOICE
    floor: bool = False
    """Whether the floor is asked too; long texts take long, and the divergence has it anyway."""
    seed: int = 0
    """Of the texts that are asked about."""
    threads: int | None = None
    """Of the comparison; None for every core."""
    level: float = 0.95
    """Confidence of the intervals in the details."""

    def __post_init__(self) -> None:
        for name in ("longest", "divergence"):
            value = getattr(self, name)
            if value < SHORTEST:
                raise UsageError(f"{name} is {value}; it must be at least {SHORTEST}.")

    @property
    def name(self) -> str:
        """The first part of its slices' names."""
        return AXIS

    @property
    def brings(self) -> Brings:
        """Failures of each kind of question, the loss of right answers, and the divergence."""
        return Brings(possible_slices())

    @property
    def texts(self) -> tuple[Documents, ...]:
        """What the document of the divergence is put together from."""
        return (self.documents,)

    def run(self, arms: Arms, progress: Progress) -> AxisResult:
        """Ask the arms, then run the document on all of them.

        An arm that runs elsewhere is asked, and its divergence is left out with a note.

        Raises:
            UnsupportedError: the model was made for fewer than `SHORTEST` positions.
            UsageError: the candidate was calibrated on the document's text.
            NumericalError: a logit is NaN or infinite.
        """
        began = time.perf_counter()
        limits = _limits(arms, self)
        asked = questions_of(list(self.haystacks(limits.tokenizer, limits.longest)))
        roles = [role for role in arms.roles if self.floor or role is not Role.FLOOR]
        answers = {role: self._ask(arms, role, limits, asked, progress) for role in roles}
        slices, details = recalled(Recalls(asked, answers, self.judge.words, limits.longest))
        along, notes = self._along(arms, limits, progress)
        if along is not None:
            slices = (*slices, along.slice)
            details = replace(details, document=limits.divergence, curves=(along.curve,))
        return AxisResult(
            axis=AXIS,
            slices=slices,
            details=details,
            notes=notes,
            seconds=time.perf_counter() - began,
        )

    def haystacks(self, tokenizer: Tokenizer, longest: int) -> Iterator[Haystack]:
        """Yield the texts of each length; one that is too short for its facts is left out.

        Args:
            tokenizer: counts.
            longest: tokens of the longest, no more than the model was made for.
        """
        reserve, encode = _RESERVES[self.judge], tokenizer.encode
        ruler = Ruler(lambda text: len(encode(text, add_special=False)), reserve, PAGE)
        for divisor, count in _SHARES:
            for number in range(count):
                for make in (hidden_facts, key_values):
                    found = make(self.seed + number, longest // divisor, ruler)
                    if found is not None:
                        yield found

    def _ask(
        self,
        arms: Arms,
        role: Role,
        limits: _Limits,
        asked: tuple[Asked, ...],
        progress: Progress,
    ) -> dict[str, Recalled]:
        """Return how an arm answered, by the names of the questions; asked is what is not kept."""
        kept = arms.kept(role, fingerprint(AXIS, self.judge.value))
        names = kept.names()
        missing = sum(one.name not in names for one in asked)
        if missing:
            told = _Told(f"{AXIS}: {role.value}", missing, progress)
            room = Room(context=limits.longest, sequences=_SEQUENCES[self.judge])
            with arms.open(role, room) as arm:
                recall(arm.answerer, self.judge, asked, kept, told)
        return kept.read(Recalled)

    def _along(
        self, arms: Arms, limits: _Limits, progress: Progress
    ) -> tuple[Along | None, tuple[str, ...]]:
        """Return the divergence along a document, and notes."""
        try:
            candidate = open_subject(arms.local(Role.CANDIDATE).path)
        except UnsupportedError as error:
            return None, (f"No divergence by position: {error}",)
        with candidate.model.checkpoint:
            notes = refuse_seen(self.documents, candidate)
        passage, owners = put_together(limits.tokenizer, self.documents, limits.divergence)
        lockstep = Lockstep(AXIS, threads_of(self.threads))
        with ExitStack() as stack:
            opened = OpenArms(arms, stack, Room(context=limits.divergence))
            found = lockstep.compare(opened, [passage], progress)
        measured = along_a_document(
            passage, owners, found[Role.CANDIDATE], found.get(Role.FLOOR), self.level
        )
        return measured, notes


@dataclass(frozen=True)
class _Limits:
    """What the source's context allows, and its tokenizer, which counts."""

    tokenizer: Tokenizer
    longest: int
    divergence: int


def _limits(arms: Arms, axis: LongContextAxis) -> _Limits:
    source = open_subject(arms.local(Role.SOURCE).path)
    with source.model.checkpoint:
        most = source.model.config.context
        if most < SHORTEST:
            raise UnsupportedError(
                f"The model was made for {most} positions, and long context needs {SHORTEST}; "
                "leave the axis out."
            )
        return _Limits(source.tokenizer, min(axis.longest, most), min(axis.divergence, most))


@dataclass
class _Told:
    """Tells progress of questions that are done."""

    what: str
    count: int
    progress: Progress
    done: int = 0

    def __call__(self, more: int) -> None:
        self.done += more
        self.progress(self.what, self.done, self.count)


def put_together(
    tokenizer: Tokenizer, documents: Documents, tokens: int
) -> tuple[Passage, tuple[str, ...]]:
    """Return passages of several documents as one, and of each prediction whose it is.

    Each is as long as the others; where the text has fewer documents, they come again with what
    follows.

    Args:
        tokenizer: of the model.
        documents: what the passages are of.
        tokens: of all passages together.

    Raises:
        UsageError: the text has no passage.
    """
    prefix = np.array(tokenizer.behaviour.prefix, np.int32)
    pieces = cut_windows(
        documents,
        lambda text: tokenizer.encode(text, add_special=False),
        (),
        length=-(-tokens // PIECES),
        limit=PIECES,
    )
    ids = np.concatenate([prefix, *(piece.tokens for piece in pieces)])[:tokens]
    names = [documents.documents[piece.document].name for piece in pieces]
    sizes = [len(piece.tokens) for piece in pieces]
    sizes[0] += len(prefix)
    owners = np.repeat(np.array(names), sizes)[1 : len(ids)].tolist()
    whole = document(f"{len(pieces)} passages of {documents.name}", documents.sha256)
    counted = np.ones(len(ids) - 1, np.bool_)
    return Passage(TEXT, whole, ids, 0, counted), tuple(owners)
