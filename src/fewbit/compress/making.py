"""Making the artefact of one step, in the form in which it would be shipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from msgspec.structs import replace as renamed

from fewbit.calibrate.calibration import CalibrationSet
from fewbit.calibrate.mix import CalibrationSettings, calibration_windows
from fewbit.compress.runtimes import EXPORTS, container_for, refusals, suited
from fewbit.compress.steps import BASE, Step
from fewbit.errors import UnsupportedError, UsageError
from fewbit.export.job import export
from fewbit.export.plan import plan_export
from fewbit.export.target import ExportSettings
from fewbit.export.targets import find_target
from fewbit.model.weights import ModelSource, open_model
from fewbit.progress import Progress
from fewbit.quantization import (
    QuantizationPlan,
    QuantizeSettings,
    execute,
    needs_text,
    plan,
    require_no_fallback,
)
from fewbit.quantization.allocating import allocated
from fewbit.quantization.job import Job
from fewbit.quantization.kept_samples import kept_samples
from fewbit.quantization.making import asked_tuning
from fewbit.quantization.target import Budget, Target, budget_of
from fewbit.recipes import built_in
from fewbit.records.manifest import manifest_path
from fewbit.records.recipe import Recipe
from fewbit.records.runtime import Runtime
from fewbit.report.card import folder_card

TUNE_WINDOWS = 480
"""Windows that training takes, as `fewbit quantize --tune` does."""


@dataclass(frozen=True)
class Workshop:
    """What every artefact of one run is made of, and for."""

    source: ModelSource
    job: Job
    runtime: Runtime
    text: CalibrationSettings
    strict: bool
    progress: Progress
    tune_windows: int = TUNE_WINDOWS

    @property
    def files(self) -> tuple[str, ...]:
        """The hashes of the files that are calibrated on; all other text comes with this build."""
        paths = (Path(part.source) for part in self.text.mix)
        return tuple(sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file())

    def planned(self, recipe: Recipe) -> QuantizationPlan:
        """Plan a recipe for the runtime.

        Raises:
            UsageError: it needs a fallback that strict forbids, or would quantize nothing.
            UnsupportedError: the runtime, or the container, would not take it.
        """
        found = plan(self.source, recipe, container_for(self.runtime))
        if self.strict:
            require_no_fallback(found)
        refused = refusals(found, self.runtime)
        if refused:
            raise UnsupportedError(f"{self.runtime} would not take it: {' '.join(refused)}")
        return found

    def budget(self, target: Target, form: str) -> Budget:
        """Return a budget as bytes of tensors; `form` is any format that the source can have."""
        recipe = suited(built_in(f"rtn-{form}"), self.runtime)
        return budget_of(target, plan(self.source, recipe, container_for(self.runtime)))

    def fits(self, budget: Budget) -> Callable[[Recipe], bool]:
        """Return what says of a recipe whether it is taken and lies within a budget."""

        def fitting(recipe: Recipe) -> bool:
            try:
                return self.planned(recipe).promised_bytes <= budget.tensors
            except (UsageError, UnsupportedError):
                return False

        return fitting

    def allocate(self, step: Step, target: Target, form: str) -> tuple[Step, QuantizeSettings]:
        """Choose formats for a budget; the step has the recipe then. Raises as `allocate`."""
        ending = "-wo" if self.runtime == "vllm" else ""
        base = suited(built_in(f"{BASE}-{form}{ending}"), self.runtime)
        recipe, settings = allocated(
            self.source,
            base,
            target,
            self.job,
            container=container_for(self.runtime),
            text=self.text,
            settings=self._settings(base),
            progress=self.progress,
        )
        return replace(step, recipe=renamed(recipe, name=step.name)), settings

    def make(
        self, planned: QuantizationPlan, folder: Path, settings: QuantizeSettings | None = None
    ) -> Path:
        """Make an artefact in a new folder; one that was made there before is taken.

        Returns:
            What is shipped: the folder, or the GGUF file in it.

        Raises:
            StoppedError, NumericalError, KernelError, OutputError: as `execute`.
        """
        out = folder
        if self.runtime == "llama.cpp":
            folder.mkdir(exist_ok=True)
            out = folder / "model.gguf"
        if manifest_path(out).is_file():
            return out
        chosen = settings or self._settings(planned.recipe)
        if self.runtime != "vllm":
            execute(planned, out, chosen, self.progress)
            return out
        raw = folder.with_name(f"{folder.name}.raw")
        if not manifest_path(raw).is_file():
            execute(planned, raw, chosen, self.progress)
        _exported(raw, out, self.runtime, self.progress)
        shutil.rmtree(raw)
        return out

    def _settings(self, recipe: Recipe) -> QuantizeSettings:
        """Return the settings, with the text that the recipe needs."""
        tuning_text = None
        if recipe.tune is not None:  # before the other, whose samples are the first of these
            tuning_text = self._windows(replace(self.text, windows=self.tune_windows))
        windows = self._windows(self.text) if needs_text(recipe) else None
        return QuantizeSettings(
            calibration=windows,
            tuning_text=tuning_text,
            tuning=asked_tuning(recipe),
            threads=self.text.threads,
            card=folder_card,
        )

    def _windows(self, text: CalibrationSettings) -> CalibrationSet:
        return calibration_windows(self.source, text, self.progress, keep=kept_samples(self.job))


def _exported(raw: Path, out: Path, runtime: Runtime, progress: Progress) -> None:
    settings = ExportSettings()
    with open_model(raw) as made:
        planned = plan_export(made, find_target(EXPORTS[runtime], settings))
        export(planned, out, settings, progress, folder_card)


def is_tunable() -> bool:
    """Return whether what tuning needs is installed."""
    return find_spec("torch") is not None
