"""`fewbit inspect`: what a model is, without running it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from fewbit.cli.activations import ActivationsOption, rounding
from fewbit.cli.output import JsonOption
from fewbit.errors import UsageError


def inspect(  # noqa: PLR0913
    model: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    manifest: Annotated[bool, Parameter(negative="")] = False,
    kernels: Annotated[bool, Parameter(negative="")] = False,
    isa: str | None = None,
    kernel: str | None = None,
    activations: ActivationsOption = None,
    json: JsonOption = None,
) -> int:
    """Show a model's architecture, formats, bits per weight, tokenizer and hazards.

    Example: fewbit inspect smollm2-135m

    Args:
        model: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        manifest: List every tensor of an artefact instead, the largest error first: format, bits
            per weight, error, damping, tokens seen, solver and transforms, fallbacks and reasons.
        kernels: List the kernel of every matrix instead, and why others were not taken.
        isa: With --kernels, force an instruction set, such as avx2.
        kernel: With --kernels, force a kernel, such as w4.sym.g32/a8.g32/avx2.
        activations: With --kernels, how layers with integer weights round their inputs: int8,
            int8-token, int8-static or bf16; by default as the model says.
        json: Write the record to this file; - prints it on stdout instead of the table.
    """
    from fewbit.checkpoint.own_manifest import manifest_of
    from fewbit.cli.output import deliver
    from fewbit.cli.pull import locate
    from fewbit.model.chosen_kernels import kernel_plan, planned_kernels
    from fewbit.model.facts import inspect_model
    from fewbit.model.runner import RunSettings
    from fewbit.model.weights import open_draft_model
    from fewbit.report.inspection import print_inspection
    from fewbit.report.kernels import print_kernels
    from fewbit.report.manifest import print_tensors

    settings = RunSettings(isa=isa, kernel=kernel, activations=rounding(activations))
    if not kernels and settings != RunSettings():
        raise UsageError(
            "--isa, --kernel and --activations choose kernels; give --kernels with them."
        )
    if manifest:
        _require_alone(kernels=kernels)
        deliver(manifest_of(locate(model)), json, print_tensors)
        return 0
    with open_draft_model(locate(model)) as source:
        if kernels:
            deliver(kernel_plan(source, settings), json, print_kernels)
            return 0
        inspection = inspect_model(source, lambda: planned_kernels(source, settings))
    deliver(inspection, json, print_inspection)
    return 0


def _require_alone(*, kernels: bool) -> None:
    if kernels:
        raise UsageError("--manifest and --kernels list different things; give one of them.")
