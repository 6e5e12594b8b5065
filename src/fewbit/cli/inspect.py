"""`fewbit inspect`: what a model is, without running it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from fewbit.cli.output import JsonOption


def inspect(
    model: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    json: JsonOption = None,
) -> int:
    """Show a model's architecture, formats, bits per weight, tokenizer and hazards.

    Example: fewbit inspect smollm2-135m

    Args:
        model: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        json: Write the record to this file; - prints it on stdout instead of the table.
    """
    from fewbit.cli.output import deliver
    from fewbit.cli.pull import locate
    from fewbit.model.facts import inspect_model
    from fewbit.model.runner import RunSettings, planned_kernels
    from fewbit.model.weights import open_model
    from fewbit.report.inspection import print_inspection

    with open_model(locate(model)) as source:
        inspection = inspect_model(source, lambda: planned_kernels(source, RunSettings()))
    deliver(inspection, json, print_inspection)
    return 0
