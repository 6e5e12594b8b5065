"""Options of tuning by distillation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.records.recipe import Recipe
    from fewbit.tune import TuneSettings


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What is trained against the source's own distribution (needs the extra `torch`)."""

    tune: Annotated[
        Literal["scales", "rounding", "weights"] | None,
        Parameter(
            help="After solving, train scales, offsets and norms; or codes too, each by at most "
            "one step; or whole weights on their grid."
        ),
    ] = None
    tune_steps: Annotated[int | None, Parameter(help="Steps of that training.")] = None
    tune_windows: Annotated[
        int, Parameter(help="Windows of the calibration's texts that it may take.")
    ] = 480

    def of(self, recipe: Recipe) -> Recipe:
        """Return the recipe with what is asked for; raises UsageError for steps of nothing."""
        from msgspec.structs import replace

        found = recipe if self.tune is None else replace(recipe, tune=self.tune)
        if self.tune_steps is not None:
            found = replace(found, tune_steps=self.tune_steps)
        if found.tune is None and self.tune_steps is not None:
            raise UsageError(
                f"--tune-steps is {self.tune_steps}, but nothing is tuned; add --tune scales."
            )
        if found.tune is not None:
            from fewbit.tune import require_torch

            require_torch()
        return found

    def settings(self, recipe: Recipe) -> TuneSettings | None:
        """Return how the recipe is tuned, or None; raises UsageError."""
        from fewbit.quantization.making import asked_tuning

        return asked_tuning(recipe)


TUNING = TuneOptions()
