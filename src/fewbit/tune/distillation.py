"""The whole of a tuning: plan, states of the source, training, record."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from pathlib import Path

import numpy as np
import torch

from fewbit.errors import MissingError, RequestError, UsageError
from fewbit.formats.spec import QuantTensor
from fewbit.keyed_random import Purpose, uniform
from fewbit.model.config import ModelConfig
from fewbit.model.decoder import build_program
from fewbit.model.weights import ModelSource
from fewbit.program import Program, Slot
from fewbit.records.tuning import ROUNDED, UNROUNDED, TunedPoint, TuneMemory, TuneRecord
from fewbit.runtime.memory import available_memory
from fewbit.runtime.torch_executor import DecodedWeights, TorchExecutor
from fewbit.tune import memory
from fewbit.tune.divergence import Outputs
from fewbit.tune.settings import (
    Job,
    TuneProgress,
    TuneResult,
    TuneSettings,
    TuneText,
)
from fewbit.tune.source import run_source
from fewbit.tune.states import Batch, States, Text, batches
from fewbit.tune.training import ARITHMETIC, Lesson, Teacher, Training

_EVERY = 8
"""One window of so many is held out where none are given."""
_HELD_OUT = 16
"""And no more than these."""
_SOURCE_WINDOWS = 4
"""Windows that the source is run over at once."""


def run(  # noqa: PLR0913, PLR0917
    source: ModelSource,
    start: Mapping[Slot, QuantTensor],
    text: TuneText,
    settings: TuneSettings,
    job: Job,
    config: ModelConfig,
) -> TuneResult:
    """Tune as `distill` says."""
    began = time.perf_counter()
    program = build_program(config)
    _require_slots(program, start)
    lesson = lesson_of(text, settings)
    _require_tokens(lesson.text, source.config.vocabulary)
    _require_context(lesson.text, source.config.context)
    positions = settings.batch * max(len(window) for window in lesson.text.windows)
    planned, recompute = memory.plan(program, start, settings, positions, available_memory())
    with _folder(job) as folder:
        key = _key(job, settings, lesson)
        teacher = _teacher(source, settings, lesson.text, (folder, key, job))
        training = Training(program, start, settings, teacher, recompute=recompute)
        training.run(lesson, job, None if job.folder is None else folder / "checkpoint", key)
    return TuneResult(
        training.best, _record(training, settings, lesson, planned, time.perf_counter() - began)
    )


def lesson_of(text: TuneText, settings: TuneSettings) -> Lesson:
    """Choose what each step sees: every window once, in keyed order, then again in another.

    Raises:
        UsageError: no windows are left to train on.
    """
    masks = text.masks or [np.ones(len(window), np.bool_) for window in text.windows]
    held = [(window, np.ones(len(window), np.bool_)) for window in text.held_out]
    own = list(zip(text.windows, masks, strict=True))
    if not held:
        taken = range(_EVERY - 1, len(own), _EVERY)[:_HELD_OUT]
        held = [own[i] for i in taken]
        own = [pair for i, pair in enumerate(own) if i not in taken]
    own = [pair for pair in own if len(pair[0]) and pair[1].any()]
    if not own or not held:
        raise UsageError(
            f"There are {len(text.windows)} windows to tune on and {len(held)} to hold out; tuning "
            f"needs at least one of each ({_EVERY} windows where none are given to hold out)."
        )
    drawn = _drawn(len(own), settings)
    used = sorted(set(drawn))
    place = {window: i for i, window in enumerate(used)}
    pairs = [own[i] for i in used] + held
    size = settings.batch
    steps = [[place[i] for i in drawn[at : at + size]] for at in range(0, len(drawn), size)]
    looks = list(batches(len(held), size, len(used)))
    windows, counted = zip(*pairs, strict=True)
    return Lesson(Text(windows, counted), steps, looks)


def _drawn(count: int, settings: TuneSettings) -> list[int]:
    """Return the windows of all steps: one keyed order after another."""
    needed, turn = settings.steps * settings.batch, 0
    drawn: list[int] = []
    while len(drawn) < needed:
        keys = [uniform(settings.seed, i, turn, Purpose.TUNING) for i in range(count)]
        drawn += sorted(range(count), key=keys.__getitem__)
        turn += 1
    return drawn[:needed]


def _teacher(
    source: ModelSource, settings: TuneSettings, text: Text, place: tuple[Path, str, Job]
) -> Teacher:
    """Compute the source's states; keep its head and let go of everything else."""
    folder, key, job = place
    program = build_program(source.config)
    arithmetic = ARITHMETIC[settings.precision]
    weights = DecodedWeights({slot: source.read(slot) for slot in program.slots()}, arithmetic)
    executor = TorchExecutor(program, weights, arithmetic)
    longest = max(len(window) for window in text.windows)
    states = States(folder / "states", text, source.config.hidden, arithmetic, key)
    states.fill(
        run_source(source, program, executor, settings.precision, (_SOURCE_WINDOWS, longest)),
        _SOURCE_WINDOWS,
        lambda done, total: job.progress(TuneProgress("source", done, total)),
    )
    table, cap = weights.matrix(executor.head.slot), executor.head.cap

    def outputs(batch: Batch) -> Outputs:
        return Outputs(states.of(batch), table, cap)

    return outputs


@contextlib.contextmanager
def _folder(job: Job) -> Iterator[Path]:
    if job.folder is not None:
        job.folder.mkdir(parents=True, exist_ok=True)
        yield job.folder
        return
    with tempfile.TemporaryDirectory(prefix="fewbit-tune-") as folder:
        yield Path(folder)


def _key(job: Job, settings: TuneSettings, lesson: Lesson) -> str:
    """Return a digest of everything that decides the outcome."""
    digest = hashlib.sha256(repr((job.key, torch.__version__, astuple(settings))).encode())
    digest.update(repr((lesson.steps, lesson.held_out)).encode())
    for window, mask in zip(lesson.text.windows, lesson.text.masks, strict=True):
        digest.update(np.ascontiguousarray(window, np.int32).tobytes())
        digest.update(np.ascontiguousarray(mask, np.bool_).tobytes())
    return digest.hexdigest()


def _require_slots(program: Program, start: Mapping[Slot, QuantTensor]) -> None:
    missing = [slot for slot in program.slots() if slot not in start]
    if missing:
        raise MissingError(
            f"The model to tune lacks a tensor for '{missing[0]}' and {len(missing) - 1} more "
            "slots; give one for every slot of the source."
        )


def _require_tokens(text: Text, vocabulary: int) -> None:
    for window in text.windows:
        wrong = window[(window < 0) | (window >= vocabulary)]
        if len(wrong):
            raise RequestError(
                f"Token id {wrong[0]} is outside the vocabulary of {vocabulary}; the tokenizer "
                "belongs to another model."
            )


def _require_context(text: Text, context: int) -> None:
    longest = max(len(window) for window in text.windows)
    if longest > context:
        raise UsageError(
            f"A window to tune on has {longest} tokens, and the model was made for {context} "
            "positions; cut the text into shorter windows."
        )


def _record(
    training: Training,
    settings: TuneSettings,
    lesson: Lesson,
    planned: TuneMemory,
    seconds: float,
) -> TuneRecord:
    standing = training.standing
    lengths = [len(window) for window in lesson.text.windows]
    return TuneRecord(
        what=settings.what.value,
        steps=settings.steps,
        ran=standing.step,
        kept=standing.kept,
        batch=settings.batch,
        rate=settings.rate,
        code_rate=settings.code_rate,
        pace=training.pace,
        slowed=training.slowed,
        warmup=settings.warmup,
        hidden=settings.hidden,
        check=settings.check,
        patience=settings.patience,
        seed=settings.seed,
        windows=len(lengths) - sum(len(look) for look in lesson.held_out),
        held_out=sum(len(look) for look in lesson.held_out),
        tokens=sum(lengths[i] for step in lesson.steps[: standing.step] for i in step),
        precision=settings.precision.value,
        activations=ROUNDED if settings.round_activations else UNROUNDED,
        teacher=settings.precision.value,
        before=standing.trajectory[0][1],
        after=standing.least,
        trajectory=tuple(TunedPoint(step=s, divergence=d) for s, d in standing.trajectory),
        tuned=training.student.tuned(),
        fixed=tuple(training.student.fixed),
        memory=planned,
        torch=str(torch.__version__),
        seconds=seconds,
    )
