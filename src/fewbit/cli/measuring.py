"""Options of what a candidate is measured on, and of how it is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.activations import ActivationsOption, rounding
from fewbit.cli.cache import KvOption, RotateOption, cache_type

if TYPE_CHECKING:
    from fewbit.evaluate.axes import AxisOptions
    from fewbit.evaluate.evaluation import EvaluationSettings
    from fewbit.records.gate import Gate


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AxesOptions:
    """What a candidate is measured on."""

    axes: Annotated[
        str,
        Parameter(
            help="Which axes, with commas: language, tasks, safety, long-context, tools, speed, "
            "memory, kernels, numerics, or all. By default language, kernels and numerics "
            "(language alone on the reference executor); of a URL endpoint, tasks, safety and "
            "tools."
        ),
    ] = ""
    suite: Annotated[
        Path | None, Parameter(help="A folder of tasks to use in place of the built-in ones.")
    ] = None
    text: Annotated[
        Path | None,
        Parameter(
            help='A UTF-8 file: plain, or .jsonl with "text" in each line. By default text that '
            "this Python carries: pydoc topics and the standard library."
        ),
    ] = None
    windows: Annotated[
        int, Parameter(help="Windows of 512 tokens to score, at most, spread over the documents.")
    ] = 40

    @property
    def names(self) -> list[str]:
        """The axes that are named."""
        return [name.strip() for name in self.axes.split(",") if name.strip()]

    def options(
        self, gate: Gate, threads: int | None = None, executor: str = "native"
    ) -> AxisOptions:
        """Return what is asked of the axes, under a gate."""
        from fewbit.evaluate.axes import AxisOptions

        return AxisOptions(
            text=self.text,
            windows=self.windows,
            suite=self.suite,
            executor=executor,
            threads=threads,
            level=gate.level,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeasuringOptions:
    """How the two models are run."""

    threads: Annotated[
        int | None, Parameter(help="Threads of the native executor; every core by default.")
    ] = None
    executor: Annotated[str, Parameter(help="native, or reference (slow, the truth in tests).")] = (
        "native"
    )
    isa: Annotated[str | None, Parameter(help="An instruction set to force.")] = None
    activations: Annotated[
        ActivationsOption,
        Parameter(
            help="How the candidate's layers with integer weights round their inputs: int8, "
            "int8-token, int8-static or bf16; by default as the model says. A model against "
            "itself shows the effect of that alone."
        ),
    ] = None
    strict: Annotated[
        bool,
        Parameter(negative="", help="Refuse models that would not be run in their own formats."),
    ] = False
    keep_packed: Annotated[
        bool,
        Parameter(
            negative="", help="Keep both models' weights as they are run in files beside them."
        ),
    ] = False
    kv: Annotated[
        KvOption,
        Parameter(
            help="How the candidate stores keys and values; the source keeps f16. A model against "
            "itself shows the effect of the KV cache alone."
        ),
    ] = "f16"
    rotate_keys: Annotated[
        RotateOption, Parameter(help="Rotate the candidate's keys before they are stored.")
    ] = False

    floor: Annotated[
        bool,
        Parameter(
            negative="--no-floor",
            help="Run the source under another precision too: what 'the same' costs here.",
        ),
    ] = True

    def settings(self, gate: Gate, work: Path | None) -> EvaluationSettings:
        """Return how a candidate is run and judged, and where what is measured is kept."""
        from fewbit.evaluate.evaluation import EvaluationSettings

        return EvaluationSettings(
            gate=gate,
            work=work,
            floor=self.floor,
            threads=self.threads,
            executor=self.executor,
            isa=self.isa,
            activations=rounding(self.activations),
            strict=self.strict,
            keep_packed=self.keep_packed,
            kv=cache_type(self.kv),
            rotate_keys=self.rotate_keys,
        )


ON_AXES = AxesOptions()
MEASURING = MeasuringOptions()
