"""Preparing a draft: its head cut to frequent tokens, its weights in the format that runs fastest.

What a draft costs is the bytes that one of its steps reads, and much of a small model is its head.
A draft is never evaluated for itself: what it says wrong costs speed, not truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.frequent_tokens import coverage, frequent_tokens, token_counts
from fewbit.calibrate.mix import CalibrationSettings, calibration_windows
from fewbit.calibrate.text import Half, default_text
from fewbit.errors import UsageError
from fewbit.model.cut_head import cut_head
from fewbit.model.tokenizer import tokenizer_of
from fewbit.model.weights import ModelSource
from fewbit.progress import Progress
from fewbit.quantization.job import Job, asked
from fewbit.quantization.kept_samples import kept_samples
from fewbit.quantization.making import NO_REQUEST, Request
from fewbit.quantization.pipeline import QuantizeSettings, execute, needs_text
from fewbit.quantization.planned import Container, QuantizationPlan
from fewbit.quantization.planning import plan
from fewbit.quantization.writing import container_of
from fewbit.records.manifest import DraftFacts, Manifest
from fewbit.records.recipe import KEEP, Recipe, Role, Rule
from fewbit.tokens.tokenizer import Tokenizer

HEAD_TOKENS = 32_768
"""Tokens that a head is cut to where the caller names no number."""

RECIPE = Recipe(
    name="draft-q4_0",
    method="imatrix",
    rules=(
        Rule(role=Role.EMBEDDING, format=KEEP),  # of which a token reads one row
        Rule(role=Role.HEAD, format="q4_0", fallback=(KEEP,)),
        Rule(role=Role.LINEAR, format="q4_0", fallback=(KEEP,)),
    ),
)
"""4 bits a weight with one scale for 32 is what a step of one row runs fastest, by bytes and by
kernel."""


@dataclass(frozen=True, kw_only=True)
class DraftSettings:
    """How a draft is prepared."""

    target: str
    """The name of the model that it will draft for."""
    tokens: int = HEAD_TOKENS
    """How many tokens its head keeps."""
    recipe: Recipe = RECIPE
    text: CalibrationSettings = field(default_factory=CalibrationSettings)
    """What tokens are counted in, beside the text that Python carries, and what is quantized on."""
    request: Request = NO_REQUEST
    """What was asked for as text, for the manifest."""
    threads: int | None = None
    """Of the model while it is calibrated; None for every core."""


def plan_draft(source: ModelSource, settings: DraftSettings) -> QuantizationPlan:
    """Return what would become of every tensor; which tokens are kept changes no size.

    Raises:
        UsageError, UnsupportedError: as `prepare_draft`.
    """
    tokenizer = tokenizer_of(source)
    known = _known(source, tokenizer)
    nothing = np.zeros(known, np.int64)
    kept = frequent_tokens(nothing, settings.tokens, _special(tokenizer, known))
    return plan(cut_head(source, kept, settings.target), settings.recipe, Container.GGUF)


def prepare_draft(
    source: ModelSource, settings: DraftSettings, out: Path, job: Job, progress: Progress
) -> Manifest:
    """Cut a draft's head to the tokens that are most frequent in text, quantize it, and write it.

    Tokens are counted in the calibration's windows and in the calibration half of the text that
    Python carries. Those that were added to the vocabulary, all with a role among them, stay.

    Args:
        source: the draft.
        settings: how it is prepared.
        out: a new GGUF file; its manifest appears beside it.
        job: the claim on the output; where it was stopped, the same call goes on.
        progress: told of what is being done.

    Raises:
        UsageError: more tokens than the vocabulary has, or too few; it was prepared already; or
            the output is to be no GGUF file.
        MissingError: this Python carries no text.
        UnsupportedError: it has no form as a GGUF file.
        Others as `quantization.execute`.
    """
    require_gguf(out)
    options = f"draft for {settings.target}, {settings.tokens} tokens, {settings.text}"
    job.begin(asked(source, settings.recipe, Container.GGUF, options))
    windows = None
    if needs_text(settings.recipe):
        keep = kept_samples(job)
        windows = calibration_windows(source, settings.text, progress, keep=keep)
    kept, facts = _chosen(source, settings, () if windows is None else windows.windows)
    planned = plan(cut_head(source, kept, settings.target), settings.recipe, Container.GGUF)
    making = QuantizeSettings(
        calibration=windows, draft=facts, request=settings.request, threads=settings.threads
    )
    return execute(planned, out, making, progress, job)


def require_gguf(out: Path) -> None:
    """Check that a prepared draft is to be a GGUF file; raises UsageError."""
    if container_of(out) is not Container.GGUF:
        raise UsageError(f"A prepared draft is a GGUF file; give --out a name such as {out}.gguf.")


def kept_tokens(
    source: ModelSource, size: int, windows: Iterable[NDArray[np.int32]]
) -> NDArray[np.int32]:
    """Return the ids that are most frequent in text, int32 [size] ascending.

    Args:
        source: whose tokens they are.
        size: how many. Those that were added to the vocabulary are always among them.
        windows: int32 [tokens] each, counted beside the text that Python carries.

    Raises:
        UsageError: more tokens than the vocabulary has, or too few.
        MissingError: this Python carries no text.
    """
    tokenizer = tokenizer_of(source)
    known = _known(source, tokenizer)
    counts = token_counts([*windows, *_text(tokenizer, Half.CALIBRATION)], known)
    return frequent_tokens(counts, size, _special(tokenizer, known))


def _chosen(
    source: ModelSource, settings: DraftSettings, windows: Iterable[NDArray[np.int32]]
) -> tuple[NDArray[np.int32], DraftFacts]:
    """Return the ids that stay, int32 [n] ascending, and the record of it."""
    tokenizer = tokenizer_of(source)
    known = _known(source, tokenizer)
    counts = token_counts([*windows, *_text(tokenizer, Half.CALIBRATION)], known)
    kept = frequent_tokens(counts, settings.tokens, _special(tokenizer, known))
    others = token_counts(_text(tokenizer, Half.EVALUATION), known)
    facts = DraftFacts(
        target=settings.target,
        kept=len(kept),
        vocabulary=source.config.vocabulary,
        counted_tokens=int(counts.sum()),
        coverage=coverage(others, kept),
    )
    return kept, facts


def _text(tokenizer: Tokenizer, half: Half) -> Iterator[list[int]]:
    """Yield the tokens of each document of the text that Python carries."""
    for document in default_text(half).documents:
        yield tokenizer.encode(document.text, add_special=False)


def _special(tokenizer: Tokenizer, known: int) -> list[int]:
    """Return the tokens that stay whatever the text: those added to the vocabulary."""
    return [token for token in tokenizer.added_tokens if token < known]


def _known(source: ModelSource, tokenizer: Tokenizer) -> int:
    """Return the number of ids that are tokens and no padding."""
    return min(tokenizer.vocabulary_size, source.config.vocabulary)
