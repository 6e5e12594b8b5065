"""A candidate against its exact source, from two paths to a verdict."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fewbit.calibrate.text import Documents
from fewbit.calibrate.windows import Window, cut_windows
from fewbit.errors import UsageError
from fewbit.evaluate.axes import Axes, summarize
from fewbit.evaluate.calibrated import refuse_calibrated
from fewbit.evaluate.conditions import conditions
from fewbit.evaluate.fixed_gate import judge
from fewbit.evaluate.identity import Subject, check_identity, describe_prefix, origin_note
from fewbit.evaluate.score import Pair, Scores, join, score
from fewbit.evaluate.subject import open_subject
from fewbit.evaluate.tensors import tensor_errors
from fewbit.model.facts import model_facts
from fewbit.model.runner import Runner, RunSettings, runner_of
from fewbit.program import CacheType
from fewbit.records.evaluation import Evaluation, Gate, Verdict
from fewbit.records.kernels import Activations, kernel_fallbacks
from fewbit.records.language import TextFacts
from fewbit.records.model import ModelFacts
from fewbit.records.outcome import Outcome
from fewbit.records.scan import TensorError
from fewbit.runtime.native import available_cores

SCREEN_LEVEL = 0.999
"""Confidence of the early look that spares a hopeless candidate the full measurement; higher than
the gate's, so that the extra look hardly adds to the chance of a wrong rejection."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How a candidate is measured; the defaults are what documentation and gates refer to."""

    gate: Gate = field(default_factory=Gate)
    windows: int = 40
    """Windows scored, at most; the first of every document before the second of any."""
    window_tokens: int = 512
    """Tokens of a full window, of which the second half is scored."""
    screen_windows: int | None = None
    """After so many windows a candidate that is rejected at `SCREEN_LEVEL` is measured no
    further; None never stops early."""
    executor: str = "native"
    threads: int | None = None
    """None for every core."""
    isa: str | None = None
    """An instruction set to force; None for the best."""
    activations: Activations | None = None
    """How the inputs of the candidate's layers with integer weights are rounded; None for what the
    candidate says itself, as the source always does."""
    strict: bool = False
    """Refuse models of which some matrix would not be run as it is stored."""
    keep_packed: bool = False
    """Keep both models' packed weights in files beside them, for a faster start the next time."""
    kv: CacheType = CacheType.F16
    """How the candidate's keys and values are stored; the source's stay f16."""
    rotate_keys: bool = False
    """Whether the candidate's keys pass a Hadamard transform before they are stored."""

    def __post_init__(self) -> None:
        for name, least in (("windows", 1), ("window_tokens", 8), ("screen_windows", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} is {value}; it must be at least {least}.")
        self.run_settings()

    def run_settings(self) -> RunSettings:
        """Return how the source is run: one sequence of one window at a time."""
        return RunSettings(
            executor=self.executor,
            threads=self.threads,
            context=self.window_tokens,
            isa=self.isa,
            keep_packed=self.keep_packed,
            strict=self.strict,
        )

    def candidate_settings(self) -> RunSettings:
        """Return how the candidate is run: as the source but for its activations and KV cache."""
        return replace(
            self.run_settings(),
            activations=self.activations,
            cache_type=self.kv,
            rotate_keys=self.rotate_keys,
        )


Progress = Callable[[int, int], None]
"""Called with the windows done and the windows there are."""


def evaluate(
    source: Path,
    candidate: Path,
    documents: Documents,
    settings: EvaluationSettings | None = None,
    progress: Progress = lambda _done, _all: None,
) -> Evaluation:
    """Measure a candidate against its exact source and judge it.

    Raises:
        IdentityError: the two are not one model in two forms.
        NumericalError: a logit or weight is NaN or infinite; it is located.
        UsageError: the text has no window, or a window is longer than the model's context.
        BadFileError, MissingError, UnsupportedError, KernelError: a model cannot be loaded.
    """
    chosen = settings or EvaluationSettings()
    with _opened(source) as one, _opened(candidate) as other:
        return _evaluate(one, other, documents, chosen, progress)


def _evaluate(
    source: Subject,
    candidate: Subject,
    documents: Documents,
    settings: EvaluationSettings,
    progress: Progress,
) -> Evaluation:
    started = time.perf_counter()
    identity = check_identity(source, candidate)
    other_origin = origin_note(source, candidate)
    refuse_calibrated(documents, candidate.manifest)
    windows = _windows(source, documents, settings)
    one = runner_of(source.model, settings.run_settings())
    other = runner_of(candidate.model, settings.candidate_settings())
    measured = _measure(_Measuring(source, one, other, documents, windows, settings), progress)
    axes = measured.axes
    facts = model_facts(source.model)
    errors = tensor_errors(source.model, candidate.model)
    return Evaluation(
        source=facts,
        candidate=model_facts(candidate.model),
        identity=identity,
        text=measured.text,
        divergence=axes.divergence,
        reverse_divergence=axes.reverse_divergence,
        histogram=axes.histogram,
        perplexity=axes.perplexity,
        agreement=axes.agreement,
        documents=axes.documents,
        tensors=errors,
        source_kernels=one.kernels,
        candidate_kernels=other.kernels,
        conditions=conditions(
            other.kernels,
            _threads(settings),
            settings.executor,
            kv=settings.kv.value,
            rotated_keys=settings.rotate_keys,
        ),
        gate=measured.gate,
        verdict=measured.verdict,
        notes=(
            *([other_origin] if other_origin else []),
            *_cache_notes(settings),
            *dict.fromkeys((*one.loading.notes, *other.loading.notes)),
            *_notes(facts, one, other, errors),
        ),
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True)
class _Measuring:
    """What is run on what."""

    subject: Subject
    source: Runner
    candidate: Runner
    documents: Documents
    windows: tuple[Window, ...]
    settings: EvaluationSettings


@dataclass(frozen=True)
class _Measured:
    """The figures of all windows scored, the gate they were judged by, and its verdict."""

    axes: Axes
    text: TextFacts
    gate: Gate
    verdict: Verdict


def _measure(run: _Measuring, progress: Progress) -> _Measured:
    """Score stage by stage; a rejection ends it."""
    pair, advance = Pair(run.source, run.candidate), _counted(progress, len(run.windows))
    parts: list[Scores] = []
    done = 0
    for until, gate in _stages(run.settings, len(run.windows)):
        threads = _threads(run.settings)
        windows = run.windows[done:until]
        parts.append(score(pair, run.documents, windows, threads=threads, progress=advance))
        done = until
        found = _judged(run, gate, join(parts), run.windows[:done])
        if found.verdict.outcome is Outcome.REJECT:
            break
    return found


def _stages(settings: EvaluationSettings, windows: int) -> list[tuple[int, Gate]]:
    """Return up to which window each stage goes, and what judges it."""
    few, gate = settings.screen_windows, settings.gate
    whole = (windows, gate)
    if few is None or few >= windows:
        return [whole]
    return [(few, msgspec.structs.replace(gate, level=SCREEN_LEVEL)), whole]


def _judged(run: _Measuring, gate: Gate, scores: Scores, windows: tuple[Window, ...]) -> _Measured:
    axes = summarize(scores, run.documents, gate.level)
    text = _text_facts(run, scores, windows)
    ratio, kernels = axes.perplexity.ratio, run.candidate.kernels
    return _Measured(axes, text, gate, judge(gate, text, axes.divergence.mean, ratio, kernels))


@contextmanager
def _opened(path: Path) -> Iterator[Subject]:
    subject = open_subject(path)
    try:
        yield subject
    finally:
        subject.model.checkpoint.close()


def _threads(settings: EvaluationSettings) -> int:
    return settings.threads or available_cores()


def _windows(
    source: Subject, documents: Documents, settings: EvaluationSettings
) -> tuple[Window, ...]:
    tokenizer = source.tokenizer
    found = cut_windows(
        documents,
        lambda text: tokenizer.encode(text, add_special=False),
        tokenizer.behaviour.prefix,
        length=settings.window_tokens,
        limit=settings.windows,
    )
    if not found:
        raise UsageError(
            f"The text '{documents.name}' has no document of at least four tokens; give more text."
        )
    return found


def _counted(progress: Progress, total: int) -> Callable[[], None]:
    """Return a function that reports one window more each time it is called."""
    done = itertools.count(1)
    return lambda: progress(next(done), total)


def _text_facts(run: _Measuring, scores: Scores, windows: tuple[Window, ...]) -> TextFacts:
    return TextFacts(
        name=run.documents.name,
        sha256=run.documents.sha256,
        documents=len({window.document for window in windows}),
        windows=len(windows),
        window_tokens=run.settings.window_tokens,
        tokens=sum(len(window.tokens) for window in windows),
        positions=len(scores.owners),
        bos=describe_prefix(run.subject.tokenizer),
    )


def _cache_notes(settings: EvaluationSettings) -> tuple[str, ...]:
    if settings.kv is CacheType.F16 and not settings.rotate_keys:
        return ()
    rotated = ", its keys rotated" if settings.rotate_keys else ""
    return (
        f"The candidate ran on a KV cache of {settings.kv.value}{rotated}, the source on one of "
        "f16: the figures count what that cache loses too.",
    )


def _notes(
    facts: ModelFacts, source: Runner, candidate: Runner, errors: tuple[TensorError, ...]
) -> tuple[str, ...]:
    notes = [
        f"Not run as stored, in the {name}: {fallback}"
        for name, runner in (("source", source), ("candidate", candidate))
        for fallback in kernel_fallbacks(runner.kernels)
    ]
    kept = [e for e in errors if e.relative_error == 0.0 and e.source_format == e.candidate_format]
    if kept and len(kept) < len(errors):
        notes.append(
            f"{len(kept)} of the {len(errors)} matrices are stored exactly as the source has them."
        )
    if facts.quantized:
        widest = max(facts.formats, key=lambda share: share.weights)
        notes.append(
            f"The source is itself quantized ({widest.format}, {facts.bits_per_weight:.2f} bits "
            "per weight): these figures say what the candidate loses against that file, not "
            "against the model that the file was made from."
        )
    if any(kernel.activations != "f32" for kernel in source.kernels):
        notes.append(
            "The source's integer layers round their inputs to 8 bits, as they do in use; that "
            "rounding belongs to the source and is not counted against the candidate."
        )
    return tuple(notes)
