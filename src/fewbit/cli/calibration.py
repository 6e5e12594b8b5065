"""Options that say what a model is calibrated on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.calibrate.mix import CalibrationSettings
    from fewbit.quantization.importance import GivenImportance
    from fewbit.records.manifest import TextRequest
    from fewbit.records.recipe import Recipe


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Text that is run through the model."""

    calibration: Annotated[
        tuple[Path, ...],
        Parameter(
            help="A text to calibrate on, .txt or .jsonl of texts or chats; may be given several "
            "times. Otherwise samples of the model and text that Python carries.",
            negative="",
            show_default=False,
        ),
    ] = ()
    calibration_windows: Annotated[int, Parameter(help="Windows of calibration text at most.")] = (
        128
    )
    window: Annotated[int, Parameter(help="Tokens of a calibration window.")] = 512
    calibration_seed: Annotated[
        int, Parameter(help="Chooses windows of the text and samples of the model.")
    ] = 0

    def settings(self, threads: int | None) -> CalibrationSettings:
        """Return what to read, and how much; raises UsageError."""
        from fewbit.calibrate.mix import DEFAULT_MIX, CalibrationSettings, Ingredient

        mix = tuple(Ingredient(str(path)) for path in self.calibration) or DEFAULT_MIX
        return CalibrationSettings(
            mix=mix,
            windows=self.calibration_windows,
            length=self.window,
            seed=self.calibration_seed,
            threads=threads,
        )

    @property
    def request(self) -> TextRequest:
        """What of it a manifest has to know."""
        from fewbit.records.manifest import TextRequest

        return TextRequest(
            files=tuple(map(str, self.calibration)),
            windows=self.calibration_windows,
            window=self.window,
            seed=self.calibration_seed,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CalibrationOptions(TextOptions):
    """Text or an importance matrix, for methods that look at what layers read."""

    inputs: Annotated[
        Literal["quantized", "source"],
        Parameter(help="Whose layers give a layer the inputs that it is solved for."),
    ] = "quantized"

    propagation: Annotated[
        float | None,
        Parameter(
            help="The part of the errors of earlier layers, 0 to 1, that layers make up for "
            "(methods gptq); as the recipe says."
        ),
    ] = None

    imatrix: Annotated[
        Path | None,
        Parameter(help="An importance matrix of llama.cpp, in place of text (methods imatrix)."),
    ] = None

    def of(self, recipe: Recipe) -> Recipe:
        """Return the recipe with what is asked for; raises UsageError for what it cannot do."""
        from msgspec.structs import replace

        from fewbit.quantization.pipeline import require_errors
        from fewbit.recipes import checked

        if self.propagation is not None:
            recipe = checked(replace(recipe, propagation=self.propagation))
        require_errors(recipe, self.inputs)
        return recipe

    def require_used(self, recipe: Recipe) -> None:
        """Refuse text and importance that a recipe does not look at; raises UsageError."""
        from fewbit.methods.solvers import Need, greatest_need
        from fewbit.quantization.pipeline import needs_text

        if self.calibration and not needs_text(recipe):
            raise UsageError(
                f"The recipe '{recipe.name}' looks at no text, so --calibration would do nothing; "
                "leave it out, or take a method such as gptq."
            )
        if self.imatrix is not None and greatest_need(recipe.methods) is Need.NOTHING:
            raise UsageError(
                f"The recipe '{recipe.name}' weighs no inputs, so --imatrix would do nothing; "
                "leave it out, or take the method imatrix."
            )

    def importance(self) -> GivenImportance | None:
        """Return the importance matrix that was named; raises BadFileError or MissingError."""
        from fewbit.quantization.importance import given_importance

        return None if self.imatrix is None else given_importance(self.imatrix)


TEXT = TextOptions()
CALIBRATION = CalibrationOptions()
