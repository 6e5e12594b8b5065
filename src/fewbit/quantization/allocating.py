"""The choice of formats for a size, as one part of a job that goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.calibration import window_digest
from fewbit.calibrate.mix import CalibrationSettings, held_out_windows
from fewbit.methods.solvers import METHODS
from fewbit.model.weights import ModelSource
from fewbit.progress import Progress
from fewbit.quantization.allocation import AllocationSettings, Wish, allocate
from fewbit.quantization.calibrated import Solving
from fewbit.quantization.job import Job
from fewbit.quantization.kept_samples import kept_samples
from fewbit.quantization.pipeline import QuantizeSettings
from fewbit.quantization.planned import Container
from fewbit.quantization.target import Target, require_less
from fewbit.quantization.trial import Builder, builder, many_weights
from fewbit.recipes import find
from fewbit.records.allocation import ChosenFormats
from fewbit.records.base import Record
from fewbit.records.recipe import KEEP, Recipe, Role, Rule
from fewbit.runtime.native import threads_of

_PROBES, _CHOICES = 6, 16
"""Windows that measure single matrices, and whole choices; half as many in a large model."""

_TOKENS = 128
"""Tokens of each."""


_KEY = "formats.key"


class ChoiceKey(Record, frozen=True, kw_only=True):
    """The text that decides which formats are chosen, beside what the job was asked for."""

    calibration: str
    """Hash of the tokens; empty where there are none."""
    held_out: str
    """Hash of those that matrices and choices are measured on."""


def base_recipe(name: str, target: Target | None) -> Recipe:
    """Return a recipe; for a target the name of a method will do. Raises as `recipes.find`."""
    if target is not None and name in METHODS:
        return Recipe(name=name, method=name, rules=(Rule(role=Role.LINEAR, format=KEEP),))
    return find(name)


def allocated(  # noqa: PLR0913
    source: ModelSource,
    base: Recipe,
    target: Target,
    job: Job,
    *,
    container: Container,
    text: CalibrationSettings,
    settings: QuantizeSettings,
    progress: Progress,
) -> tuple[Recipe, QuantizeSettings]:
    """Return the recipe for a target, and the settings with the record of how it was chosen.

    What an earlier run of the job chose on the same text is taken.

    Raises:
        UsageError: it chose on another.
        Others as `require_less` and `allocate`.
    """
    if not base.transforms:  # what they touch is not kept as it is
        require_less(target, source)
    share = 2 if many_weights(source) else 1
    probes, choices = _PROBES // share, _CHOICES // share

    count, keep = probes + choices, kept_samples(job)
    windows = held_out_windows(source, text, count, settings.calibration, progress, keep=keep)

    def choose() -> ChosenFormats:
        recipe, record = allocate(
            Wish(source=source, base=base, container=container, target=target),
            [window[:_TOKENS] for window in windows],
            _builder(source, base, settings, progress),
            AllocationSettings(probe_windows=probes, threads=settings.threads),
            progress,
        )
        return ChosenFormats(recipe=recipe, allocation=record)

    job.require_same(_KEY, _chosen_on(windows, settings))
    found = job.kept("formats.json", ChosenFormats, choose)
    return found.recipe, replace(settings, allocation=found.allocation)


def _chosen_on(windows: Sequence[NDArray[np.int32]], settings: QuantizeSettings) -> ChoiceKey:
    calibration = settings.calibration
    return ChoiceKey(
        calibration="" if calibration is None else calibration.facts.tokens_sha256,
        held_out=window_digest(windows),
    )


def _builder(
    source: ModelSource, base: Recipe, settings: QuantizeSettings, progress: Progress
) -> Builder:
    threads = threads_of(settings.threads)
    if settings.calibration is None:
        return builder(source, base, None, threads)
    solving = Solving(
        calibration=settings.calibration,
        inputs=settings.inputs,
        threads=threads,
        progress=lambda done, total, what: progress(
            f"solving {what} for the comparison", done, total
        ),
    )
    return builder(source, base, solving, threads)
