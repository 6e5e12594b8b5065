"""Options of running a model whose speed or whose draft is put to the test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.activations import ActivationsOption, rounding
from fewbit.cli.cache import KvOption, RotateOption, cache_type
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.evaluate.machine.speed import SpeedSettings
    from fewbit.model.runner import RunSettings


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunningOptions:
    """How the model runs, on the native executor."""

    activations: Annotated[
        ActivationsOption,
        Parameter(
            help="How layers with integer weights round their inputs: int8, int8-token, "
            "int8-static or bf16; by default as the model says."
        ),
    ] = None
    kv: Annotated[KvOption, Parameter(help="How keys and values are stored.")] = "f16"
    rotate_keys: Annotated[RotateOption, Parameter(help="Rotate keys before they are stored.")] = (
        False
    )
    threads: Annotated[
        int | None, Parameter(help="Of the native executor; every core by default.")
    ] = None
    keep_packed: Annotated[
        bool,
        Parameter(negative="", help="Keep the weights as they are run in a file beside the model."),
    ] = False

    def settings(self, sequences: int, context: int) -> RunSettings:
        """Return how so many sequences of a context run; raises UsageError."""
        from fewbit.model.runner import RunSettings

        return RunSettings(
            threads=self.threads,
            context=context,
            sequences=sequences,
            activations=rounding(self.activations),
            cache_type=cache_type(self.kv),
            rotate_keys=self.rotate_keys,
            keep_packed=self.keep_packed,
        )

    def speed(self, prompt: int, tokens: int, concurrency: tuple[int, ...]) -> SpeedSettings:
        """Return how the speed of requests of such lengths is measured; raises UsageError."""
        from fewbit.evaluate.machine.speed import SpeedSettings

        return SpeedSettings(
            prompt=prompt,
            tokens=tokens,
            concurrency=concurrency,
            threads=self.threads,
            activations=rounding(self.activations),
            cache_type=cache_type(self.kv),
            rotate_keys=self.rotate_keys,
            keep_packed=self.keep_packed,
        )


RUNNING = RunningOptions()


def counts(option: str, text: str, example: str) -> tuple[int, ...]:
    """Return the numbers that an option was given with commas; raises UsageError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--{option} is {text!r}; write numbers with commas, such as {example}."
        ) from None
