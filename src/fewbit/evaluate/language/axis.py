"""The axis of language: divergence and perplexity on text, conversations and other languages.

Sequences are run on the source and on every other arm in lockstep; what came of one is kept by the
hash of its tokens, so that more windows cost no more than those that are new, and the floor of a
source serves all its candidates.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from msgspec.structs import replace

from fewbit.calibrate.text import Documents
from fewbit.errors import TemplateError, UsageError
from fewbit.evaluate.arms import Arms, Role, Room, one_day
from fewbit.evaluate.axis import Brings
from fewbit.evaluate.identity import Subject, describe_prefix, require_begun_once
from fewbit.evaluate.language import conversations as built_in
from fewbit.evaluate.language.calibrated import refuse_seen
from fewbit.evaluate.language.conversations import Chat
from fewbit.evaluate.language.examples import worst
from fewbit.evaluate.language.lockstep import Lockstep, OpenArms
from fewbit.evaluate.language.passages import (
    CHAT,
    LANGUAGES,
    Cut,
    Passage,
    chat_passages,
    short_passages,
    text_passages,
)
from fewbit.evaluate.language.positions import Positions, table
from fewbit.evaluate.language.summary import AXIS, Measured, details, possible_slices, slices
from fewbit.evaluate.subject import open_subject
from fewbit.progress import Progress
from fewbit.records.language import LanguageDetails, TextFacts
from fewbit.records.measurement import AxisResult, Finding
from fewbit.runtime.native import threads_of
from fewbit.tokens.chat_template import ChatTemplate
from fewbit.tokens.tokenizer import Tokenizer

BEGINS_ONCE = f"{AXIS}/begins-once"

_LEAST = {"windows": 1, "window_tokens": 8, "whole_windows": 0, "passage_tokens": 8}


@dataclass(frozen=True, kw_only=True)
class LanguageAxis:
    """What is scored, and how much of it.

    Raises:
        UsageError: no window, or windows of fewer than 8 tokens.
    """

    documents: Documents
    """The main text; figures without another name are of it."""
    windows: int = 40
    """Windows scored, at most; the first of every document before the second of any."""
    window_tokens: int = 512
    """Tokens of a full window, of which the second half counts; longer conversations are cut
    there."""
    whole_windows: int = 12
    """So many of the windows are compared from their start, for the divergence by position."""
    conversations: tuple[Chat, ...] = field(default_factory=built_in.conversations)
    passages: Documents = field(default_factory=built_in.passages)
    """In other languages; compared from their start."""
    passage_tokens: int = 128
    """Tokens that longer passages are cut after."""
    threads: int | None = None
    """Of the comparison; None for every core."""
    level: float = 0.95
    """Confidence of the intervals in the details."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise UsageError(f"{name} is {value}; it must be at least {least}.")

    @property
    def name(self) -> str:
        """The first part of its slices' names."""
        return AXIS

    @property
    def brings(self) -> Brings:
        """Slices by domain and token, whichever the text has, and that nothing begins twice."""
        return Brings(possible_slices(), (BEGINS_ONCE,))

    @property
    def texts(self) -> tuple[Documents, ...]:
        """The main text, what the conversations say, and the passages."""
        return self.documents, built_in.chats_text(self.conversations), self.passages

    def run(self, arms: Arms, progress: Progress) -> AxisResult:
        """Score every sequence on every arm.

        Raises:
            UsageError: the text has no window, a window is longer than the model's context, or the
                candidate was calibrated on the text.
            IdentityError: what begins a text is there twice.
            NumericalError: a logit is NaN or infinite; names arm, document and position.
        """
        began = time.perf_counter()
        run = self._prepared(arms)
        lockstep = Lockstep(AXIS, threads_of(self.threads))
        with ExitStack() as stack:
            opened = OpenArms(arms, stack, Room(context=self.window_tokens))
            found = lockstep.compare(opened, run.passages, progress)
        positions = table(run.passages, found[Role.CANDIDATE], found.get(Role.FLOOR))
        measured = Measured(positions, self.level)
        return AxisResult(
            axis=AXIS,
            slices=slices(measured),
            findings=(_begins_once(run),),
            details=self._details(run, measured),
            notes=run.notes,
            seconds=time.perf_counter() - began,
        )

    def passages_for(self, subject: Subject) -> tuple[Passage, ...]:
        """Return all sequences, as a model's tokenizer and template cut and write them.

        Raises:
            UsageError: the text has no window.
        """
        return self._cut(subject).passages

    def _prepared(self, arms: Arms) -> _Prepared:
        """Cut everything, with the candidate's tokenizer, which is the source's too.

        Refuses a candidate that has seen the text.
        """
        candidate = open_subject(arms.local(Role.CANDIDATE).path)
        try:
            self._require_context(candidate.model.config.context)
            run = self._cut(candidate)
            for passage in run.passages:
                tokens = passage.tokens.tolist()
                require_begun_once(run.tokenizer, tokens, f"'{passage.document.name}'")
            notes = self._calibrated(candidate)
            return _Prepared(
                run.tokenizer, run.passages, tuple(dict.fromkeys((*run.notes, *notes)))
            )
        finally:
            candidate.model.checkpoint.close()

    def _calibrated(self, candidate: Subject) -> Iterator[str]:
        for text in self.texts:
            yield from refuse_seen(text, candidate)

    def _require_context(self, most: int) -> None:
        if self.window_tokens > most:
            raise UsageError(
                f"window_tokens is {self.window_tokens}, but the model was made for {most} "
                "positions; ask for no more than that."
            )

    def _cut(self, subject: Subject) -> _Prepared:
        tokenizer = subject.tokenizer
        cut = Cut(windows=self.windows, tokens=self.window_tokens, whole=self.whole_windows)
        text = tuple(text_passages(tokenizer, self.documents, cut))
        chats, notes = self._chats(subject)
        longest = min(self.passage_tokens, self.window_tokens)
        other = short_passages(tokenizer, self.passages, LANGUAGES, longest)
        if not self.passages.documents:
            notes = (*notes, "No passage in another language was measured: none was given.")
        return _Prepared(tokenizer, (*text, *chats, *other), notes)

    def _chats(self, subject: Subject) -> tuple[tuple[Passage, ...], tuple[str, ...]]:
        """Return the conversations as the model's template writes them, and notes."""
        if not self.conversations:
            return (), ("No conversation was measured: none was given.",)
        if subject.chat_template is None:
            return (), ("The model has no chat template, so no conversation was measured.",)
        special = subject.tokenizer.special_texts
        template = ChatTemplate(subject.chat_template, special, clock=one_day)
        try:
            found = chat_passages(
                subject.tokenizer, template, self.conversations, self.window_tokens
            )
        except TemplateError as error:
            return (), (f"No conversation was measured: {error}",)
        short = len(self.conversations) - len(found.passages)
        left = f"{short} conversations have no answer within {self.window_tokens} tokens; left out."
        return found.passages, tuple(filter(None, (found.note, left if short else "")))

    def _details(self, run: _Prepared, m: Measured) -> LanguageDetails:
        found = details(m, self._facts(run, m.positions, int(m.text.sum())))
        return replace(found, examples=worst(run.tokenizer, run.passages, m.positions))

    def _facts(self, run: _Prepared, positions: Positions, counted: int) -> TextFacts:
        own = [p for p in run.passages if p.domain not in {CHAT, LANGUAGES}]
        return TextFacts(
            name=self.documents.name,
            sha256=self.documents.sha256,
            documents=len({passage.document.sha256 for passage in own}),
            windows=len(own),
            window_tokens=self.window_tokens,
            tokens=sum(len(passage.tokens) for passage in own),
            positions=counted,
            bos=describe_prefix(run.tokenizer),
        )


@dataclass(frozen=True)
class _Prepared:
    """What is run, and what has to be said of it."""

    tokenizer: Tokenizer
    passages: tuple[Passage, ...]
    notes: tuple[str, ...]


def _begins_once(run: _Prepared) -> Finding:
    begins = f"every window of text begins with {describe_prefix(run.tokenizer)}"
    chats = [passage for passage in run.passages if passage.domain == CHAT]
    if chats:
        text = run.tokenizer.token_text(int(chats[0].tokens[0]))
        begins += f", and every conversation, by its template, with {text}"
    return Finding(name=BEGINS_ONCE, axis=AXIS, passed=True, found=f"{begins}; nothing twice.")
