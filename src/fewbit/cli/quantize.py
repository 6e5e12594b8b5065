"""`fewbit quantize`: one recipe, one artefact, its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def quantize(
    source: Annotated[str, Parameter(name="SOURCE")],
    /,
    *,
    recipe: str,
    out: Path,
    json: Annotated[Path | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
) -> int:
    """Quantize a model by a recipe and write it with its manifest.

    Args:
        source: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        recipe: A built-in recipe, rtn-int4-g32 or mse-int5-g64-asym for example, or a .toml file.
        out: A new folder, or a file that ends in .gguf for the recipes rtn-q4_0 and rtn-q8_0.
        json: Write the manifest to this file too; - prints it on stdout instead of the table.
    """
    from rich.console import Console
    from rich.progress import Progress

    from fewbit.atomic import write_bytes
    from fewbit.cli.pull import locate
    from fewbit.model.weights import open_model
    from fewbit.quantize import container_of, execute, plan
    from fewbit.recipes import find
    from fewbit.records.base import to_json
    from fewbit.report.quantization import print_manifest

    found = find(recipe)
    with open_model(locate(source)) as opened:
        planned = plan(opened, found, container_of(out))
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("quantizing", total=len(planned.tensors))
            manifest = execute(planned, out, lambda _: bar.advance(task))
    if json == Path("-"):
        print(to_json(manifest).decode(), end="")
        return 0
    if json is not None:
        write_bytes(json, to_json(manifest))
    print_manifest(manifest, Console(highlight=False))
    print(out)
    return 0
