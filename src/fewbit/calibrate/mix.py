"""The calibration windows: tokens from files, from the text of CPython, and from the model.

Sources are mixed by their shares of the tokens. Within a source, windows are taken in a seeded
order, whole ones before rests.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.calibration import CalibrationSet, calibration_set, window_digest
from fewbit.calibrate.entries import Conversation, Entry, Passage, Tokens, read_entries
from fewbit.calibrate.openings import openings
from fewbit.calibrate.portion import portion
from fewbit.calibrate.samples import (
    WRITER_FORMAT,
    Samples,
    SampleSettings,
    Writer,
    pages_of,
    write_samples,
    writing_executor,
)
from fewbit.calibrate.text import Half, default_name, default_text
from fewbit.calibrate.windows import MINIMUM_TOKENS
from fewbit.errors import BadFileError, MissingError, UsageError
from fewbit.keyed_random import Purpose
from fewbit.model.tokenizer import chat_template_of, tokenizer_of
from fewbit.model.weights import ModelSource
from fewbit.progress import Progress, unwatched
from fewbit.records.calibration import CalibrationText
from fewbit.runtime.native import threads_of
from fewbit.sampling import SamplingThreads
from fewbit.tokens.chat_template import ChatTemplate
from fewbit.tokens.tokenizer import Tokenizer

SAMPLES = "samples"
"""The name of the model's own samples among sources; a file of this name needs a `./` before it."""

DEFAULT = "default"
"""The name of the calibration half of the text that Python carries."""

SAMPLES_TEXT = "the model's own samples"
"""What records call them."""

_HELD_OUT_SAMPLES = 1 << 32
"""The number of the first held-out sample: no calibration has so many."""

_SEEDS = 1 << 64
"""How many seeds there are."""

Keep: TypeAlias = Callable[[SampleSettings, Callable[[], Samples]], Samples]
"""Called with each batch of samples and what writes it; gives it back, or an equal one that is kept
from before."""


def unkept(_: SampleSettings, write: Callable[[], Samples]) -> Samples:
    """Write a batch of samples anew."""
    return write()


@dataclass(frozen=True)
class Ingredient:
    """A source, `samples`, `default` or a file's path, and its share of the mix, above 0."""

    source: str
    share: float = 1.0

    @property
    def text(self) -> str:
        """What records call the text."""
        named = {SAMPLES: SAMPLES_TEXT, DEFAULT: default_name(Half.CALIBRATION)}
        return named.get(self.source, self.source)

    @property
    def is_sound(self) -> bool:
        """Whether the share can be one."""
        return isinstance(self.share, int | float) and 0 < self.share < math.inf


DEFAULT_MIX = (Ingredient(SAMPLES), Ingredient(DEFAULT))


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """What is read, and how much of it."""

    mix: tuple[Ingredient, ...] = DEFAULT_MIX
    windows: int = 128
    length: int = 512
    """Tokens of a window. A source gives at most its share of `windows` x `length` tokens."""
    seed: int = 0
    held_out: bool = False
    """Whether to take what the same settings without it leave: windows from the other end of the
    seeded order, and other samples."""
    threads: int | None = None
    """Of the model while it writes samples; None for every core."""

    def __post_init__(self) -> None:
        for name in ("windows", "length", "seed"):
            if not isinstance(getattr(self, name), int):
                raise UsageError(f"{name} is {getattr(self, name)!r}; give a whole number.")
        if not isinstance(self.mix, tuple) or not all(isinstance(i, Ingredient) for i in self.mix):
            raise UsageError(f"mix is {self.mix!r}; give a tuple of fewbit.Ingredient.")
        if self.windows < 1 or self.length < 2 * MINIMUM_TOKENS:
            raise UsageError(
                f"Calibration asks for {self.windows} windows of {self.length} tokens; ask for at "
                f"least one of {2 * MINIMUM_TOKENS} tokens."
            )
        if not self.mix or not all(part.is_sound for part in self.mix):
            raise UsageError(
                "Calibration needs at least one source, each with a finite share above 0."
            )
        if not 0 <= self.seed < _SEEDS:
            raise UsageError(f"seed is {self.seed}; give a number from 0 to {_SEEDS - 1}.")


def calibration_windows(
    source: ModelSource,
    settings: CalibrationSettings,
    progress: Progress = unwatched,
    *,
    keep: Keep = unkept,
) -> CalibrationSet:
    """Return the windows of a mix for one model; the same arguments always give the same ones.

    The record has each source's windows with their hash.

    Args:
        source: the model.
        settings: what is read.
        progress: told what goes on.
        keep: where samples that the model wrote are kept from one call to the next.

    Raises:
        UsageError: windows are longer than the model's context.
        MissingError: a file, the model's tokenizer or the chat template for conversations is not
            there.
        BadFileError: a file cannot be read as `read_entries` says, gives no window, or has an id
            outside the vocabulary.
        TemplateError: the model's template fails on a conversation.
        NumericalError: the model writes no finite logits.
    """
    if settings.length > source.config.context:
        raise UsageError(
            f"Calibration asks for windows of {settings.length} tokens, and the model's context "
            f"has {source.config.context}; give a smaller --window."
        )
    total = sum(part.share for part in settings.mix)
    reader = _Reader(source, settings, tokenizer_of(source), progress, keep)
    parts = [
        reader.part(ingredient.source, round(settings.windows * ingredient.share / total) or 1)
        for ingredient in settings.mix
    ]
    return calibration_set(
        [tokens for part in parts for tokens in part.windows],
        [_text(part) for part in parts],
        window_tokens=settings.length,
        seed=settings.seed,
        remarks=[f"{part.name}: {note}" for part in parts for note in part.notes],
    )


def held_out_windows(  # noqa: PLR0913
    source: ModelSource,
    settings: CalibrationSettings,
    windows: int,
    seen: CalibrationSet | None,
    progress: Progress = unwatched,
    *,
    keep: Keep = unkept,
) -> tuple[NDArray[np.int32], ...]:
    """Return windows of the same mix that a calibration has not seen, int32 [tokens] each.

    Args:
        source: the model.
        settings: of the calibration.
        windows: how many.
        seen: the calibration, where there is one; a window that is in it too, because its source
            has no more text, is left out.
        progress: told what goes on.
        keep: where samples are kept.

    Raises as `calibration_windows`.
    """
    wanted = replace(settings, windows=windows, held_out=True)
    known = set() if seen is None else {window.tobytes() for window in seen.windows}
    found = calibration_windows(source, wanted, progress, keep=keep).windows
    return tuple(window for window in found if window.tobytes() not in known)


@dataclass(frozen=True)
class _Part:
    name: str
    windows: Samples
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Reader:
    """Turns sources into windows for one model."""

    source: ModelSource
    settings: CalibrationSettings
    tokenizer: Tokenizer
    progress: Progress
    keep: Keep

    @functools.cached_property
    def template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one."""
        text = chat_template_of(self.source)
        return None if text is None else ChatTemplate(text, self.tokenizer.special_texts)

    def part(self, name: str, windows: int) -> _Part:
        """Return up to so many windows' worth of a source's tokens."""
        if name == SAMPLES:
            return self._samples(windows)
        if name == DEFAULT:
            text = default_text(Half.CALIBRATION)
            passages = [Passage(document.text) for document in text.documents]
            return self._chosen(text.name, passages, windows)
        return self._chosen(name, read_entries(Path(name)), windows)

    def _chosen(self, name: str, entries: Sequence[Entry], windows: int) -> _Part:
        cut: list[NDArray[np.int32]] = []
        shortened, read = 0, portion(entries, windows * self.settings.length)
        for done, entry in enumerate(read.entries):
            self.progress(f"reading {name}", done, len(read.entries))
            found = self._windows(entry)
            shortened += isinstance(entry, Tokens) and len(entry.ids) > self.settings.length
            cut += [window for window in found if len(window) >= MINIMUM_TOKENS]
        if not cut:
            raise BadFileError(
                f"'{name}' gives no calibration window of {MINIMUM_TOKENS} tokens; give more text."
            )
        chosen = _taken(cut, windows, self.settings)
        notes = _notes(chosen, windows * self.settings.length, shortened, self.settings.length)
        return _Part(name, chosen, (*filter(None, [read.note]), *notes))

    def _windows(self, entry: Entry) -> list[NDArray[np.int32]]:
        if isinstance(entry, Tokens):
            ids = self._checked(entry.ids)
            return [np.array(ids[: self.settings.length], np.int32)]
        if isinstance(entry, Conversation):
            return self._cut(self._rendered(entry), ())
        return self._cut(
            self.tokenizer.encode(entry.text, add_special=False), self.tokenizer.behaviour.prefix
        )

    def _cut(self, ids: Sequence[int], prefix: Sequence[int]) -> list[NDArray[np.int32]]:
        room = self.settings.length - len(prefix)
        slices = [[*prefix, *ids[start : start + room]] for start in range(0, len(ids), room)]
        return [np.array(part, np.int32) for part in slices]

    def _checked(self, ids: Sequence[int]) -> Sequence[int]:
        known = range(self.source.config.vocabulary)
        wrong = next((token for token in ids if token not in known), None)
        if wrong is not None:
            raise BadFileError(
                f"Calibration data has the token id {str(wrong)[:20]}, outside the vocabulary of "
                f"{len(known)}; it was made for another tokenizer."
            )
        return ids

    def _rendered(self, entry: Conversation) -> list[int]:
        template = self.template
        if template is None:
            raise MissingError(
                f"{self.source.path} has no chat template, which calibration on conversations "
                'needs; give lines with "text" instead.'
            )
        text = template.render(entry.messages, add_generation_prompt=False)
        return self.tokenizer.encode(text, add_special=False, parse_special=True)

    def _samples(self, windows: int) -> _Part:
        settings = SampleSettings(
            windows=windows,
            length=self.settings.length,
            seed=self.settings.seed,
            first=_HELD_OUT_SAMPLES if self.settings.held_out else 0,
        )
        done = 0

        def count(tokens: int) -> None:
            nonlocal done
            done += tokens
            self.progress("writing samples", done, windows * settings.length)

        pen = _Pen(self, settings, count)
        written = [
            tokens
            for batch in settings.batches()
            for tokens in self.keep(batch, functools.partial(pen.write, batch))
        ]
        note = f"drawn at temperature 1 from the model with its float matrices in {WRITER_FORMAT}"
        return _Part(SAMPLES_TEXT, tuple(written), (note,))


@dataclass(frozen=True)
class _Pen:
    """Writes batches of samples; the model is made ready when the first one is written."""

    reader: _Reader
    settings: SampleSettings
    """Of all batches together."""
    count: Callable[[int], None]

    def write(self, batch: SampleSettings) -> Samples:
        """Return what the model writes."""
        return write_samples(self._writer, self._openings, batch, self.count)

    @functools.cached_property
    def _openings(self) -> Sequence[Sequence[int]]:
        return openings(self.reader.tokenizer, self.reader.template)

    @functools.cached_property
    def _writer(self) -> Writer:
        source, tokenizer = self.reader.source, self.reader.tokenizer
        threads = threads_of(self.reader.settings.threads)
        executor = writing_executor(source, pages_of(self.settings), threads)
        known = min(tokenizer.vocabulary_size, source.config.vocabulary)
        ends = tokenizer.special.end_of_generation
        return Writer(executor, known, ends, SamplingThreads(executor.pool))


def _taken(
    cut: Sequence[NDArray[np.int32]], windows: int, settings: CalibrationSettings
) -> Samples:
    """Return windows in a seeded order until they have so many windows' worth of tokens."""
    key = np.array([settings.seed, Purpose.CALIBRATION], np.uint64)
    order = np.random.Generator(np.random.Philox(key=key)).permutation(len(cut)).tolist()
    if settings.held_out:
        order.reverse()
    order.sort(key=lambda index: 2 * len(cut[index]) < settings.length)  # stable: rests last
    chosen: list[NDArray[np.int32]] = []
    room = windows * settings.length
    for index in order:
        if room < MINIMUM_TOKENS:
            break
        chosen.append(cut[index][:room])
        room -= len(cut[index])
    return tuple(chosen)


def _notes(chosen: Samples, wanted: int, shortened: int, length: int) -> tuple[str, ...]:
    notes = []
    if shortened:
        what = "entry is" if shortened == 1 else "entries are"
        notes.append(f"{shortened} pre-tokenized {what} longer than {length} tokens and cut there")
    found = sum(map(len, chosen))
    if found < wanted:
        notes.append(f"it has {found} tokens, fewer than its share of {wanted}")
    return tuple(notes)


def _text(part: _Part) -> CalibrationText:
    digest = window_digest(part.windows)
    return CalibrationText(name=part.name, sha256=digest, windows=len(part.windows))
