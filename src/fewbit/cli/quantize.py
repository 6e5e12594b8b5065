"""`fewbit quantize`: one recipe, one artefact, its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fewbit.cli.output import JsonOption


def quantize(
    source: Annotated[str, Parameter(name="SOURCE")],
    /,
    *,
    recipe: str,
    out: Path,
    strict: Annotated[bool, Parameter(negative="")] = False,
    json: JsonOption = None,
) -> int:
    """Quantize a model by a recipe and write it with its manifest.

    Args:
        source: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        recipe: A built-in recipe, rtn-int4-g32 or mse-int5-g64-asym for example, or a .toml file.
        out: A new folder, or a file that ends in .gguf for the recipes rtn-q4_0 and rtn-q8_0.
        strict: Refuse a recipe that some tensors would need a fallback for.
        json: Write the manifest to this file too; - prints it on stdout instead of the table.
    """
    from fewbit.cli.output import STDOUT, deliver
    from fewbit.cli.progress import progress_bar
    from fewbit.cli.pull import locate
    from fewbit.model.weights import open_model
    from fewbit.quantize import container_of, execute, plan, require_no_fallback
    from fewbit.recipes import find
    from fewbit.report.quantization import print_manifest

    found = find(recipe)
    with open_model(locate(source)) as opened:
        planned = plan(opened, found, container_of(out))
        if strict:
            require_no_fallback(planned)
        with progress_bar() as bar:
            task = bar.add_task("quantizing", total=len(planned.tensors))
            manifest = execute(planned, out, lambda _: bar.advance(task))
    deliver(manifest, json, print_manifest)
    if json != STDOUT:
        print(out)
    return 0
