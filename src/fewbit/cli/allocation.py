"""Options that ask for a size, and the choice of formats for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.errors import FaultError, UsageError

if TYPE_CHECKING:
    from fewbit.calibrate.mix import CalibrationSettings, Progress
    from fewbit.model.weights import ModelSource
    from fewbit.quantization import QuantizeSettings
    from fewbit.quantization.job import Job
    from fewbit.quantization.target import Target
    from fewbit.quantization.trial import Builder
    from fewbit.records.manifest import Manifest
    from fewbit.records.recipe import Recipe

_PROBES, _CHOICES = 6, 16
"""Windows that measure single matrices, and whole choices; half as many in a large model."""

_TOKENS = 128
"""Tokens of each."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """A size for which every matrix's format is chosen; the recipe's formats are not used then."""

    target_size: Annotated[
        str | None,
        Parameter(
            help="Choose formats so that the artefact takes at most this, 90MB or 86MiB for "
            "example: a GGUF file as a whole, of a folder the tensors."
        ),
    ] = None
    target_bpw: Annotated[
        float | None,
        Parameter(help="Choose formats so that all tensors take so many bits per weight at most."),
    ] = None

    def target(self) -> Target | None:
        """Return what is asked for, or None; raises UsageError."""
        from fewbit.quantization.target import parse_bits, parse_size

        if self.target_size is not None and self.target_bpw is not None:
            raise UsageError("--target-size and --target-bpw were both given; give one of them.")
        if self.target_size is not None:
            return parse_size(self.target_size)
        return None if self.target_bpw is None else parse_bits(self.target_bpw)


TARGET = TargetOptions()


def base_recipe(name: str, target: Target | None) -> Recipe:
    """Return a recipe; for a target the name of a method will do. Raises as `recipes.find`."""
    from fewbit.methods.solvers import METHODS
    from fewbit.recipes import find
    from fewbit.records.recipe import KEEP, Recipe, Role, Rule

    if target is not None and name in METHODS:
        return Recipe(name=name, method=name, rules=(Rule(role=Role.LINEAR, format=KEEP),))
    return find(name)


def allocated(  # noqa: PLR0913
    source: ModelSource,
    base: Recipe,
    target: Target,
    job: Job,
    *,
    text: CalibrationSettings,
    settings: QuantizeSettings,
    progress: Progress,
) -> tuple[Recipe, QuantizeSettings]:
    """Return the recipe for a target, and the settings with the record of how it was chosen.

    What an earlier run of the job chose is taken. Raises as `allocate`.
    """
    from fewbit.calibrate.mix import held_out_windows
    from fewbit.quantization import container_of
    from fewbit.quantization.allocation import AllocationSettings, Wish, allocate
    from fewbit.quantization.kept_samples import kept_samples
    from fewbit.quantization.trial import many_weights
    from fewbit.records.allocation import ChosenFormats

    share = 2 if many_weights(source) else 1
    probes, choices = _PROBES // share, _CHOICES // share

    def choose() -> ChosenFormats:
        count, keep = probes + choices, kept_samples(job)
        windows = held_out_windows(source, text, count, settings.calibration, progress, keep=keep)
        recipe, record = allocate(
            Wish(source=source, base=base, container=container_of(job.out), target=target),
            [window[:_TOKENS] for window in windows],
            _builder(source, base, settings, progress),
            AllocationSettings(probe_windows=probes, threads=settings.threads),
            progress,
        )
        return ChosenFormats(recipe=recipe, allocation=record)

    found = job.kept("formats.json", ChosenFormats, choose)
    return found.recipe, replace(settings, allocation=found.allocation)


def _builder(
    source: ModelSource, base: Recipe, settings: QuantizeSettings, progress: Progress
) -> Builder:
    from fewbit.quantization.calibrated import Solving
    from fewbit.quantization.trial import builder
    from fewbit.runtime.native import available_cores

    threads = settings.threads or available_cores()
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


def require_kept(manifest: Manifest, out: Path) -> None:
    """Compare what was written with the target; raises FaultError where it takes more."""
    found = manifest.allocation
    if found is None:
        return
    written = out.stat().st_size if found.counts == "file" else manifest.tensor_bytes
    if written > found.target_bytes:
        raise FaultError(
            f"{out} takes {written} bytes, more than the target of {found.target_bytes}."
        )
