"""`fewbit export`: a model in the format of another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fewbit.cli.output import JsonOption
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.export.plan import PlannedExport
    from fewbit.export.target import ExportSettings


def export(  # noqa: PLR0913
    model: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    to: str,
    out: Path | None = None,
    plan: Annotated[bool, Parameter(negative="")] = False,
    requantize: Annotated[bool, Parameter(negative="")] = False,
    dtype: Literal["bf16", "f16", "f32"] = "bf16",
    split_size: str | None = None,
    shard_size: str | None = None,
    json: JsonOption = None,
) -> int:
    """Write a model in the format of another runtime, with tokenizer, template and manifest.

    Example: fewbit export small --to gguf --out small.gguf

    Args:
        model: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        to: The format: gguf, hf, compressed-tensors, gptq, gptq_v2, awq or torchao.
        out: What is written: a file for gguf, a folder for the others.
        plan: Print what would be written, and what that would cost, and write nothing.
        requantize: Allow formats that do not hold every value of the source's.
        dtype: What integers become where the target has floats only.
        split_size: Cut a GGUF file into parts of at most this size, such as 2GB.
        shard_size: Put at most this much into one of a folder's files of weights; 5GB.
        json: Write the plan or the manifest to this file too; - prints it on stdout instead.
    """
    from fewbit.cli.output import deliver
    from fewbit.cli.pull import locate
    from fewbit.export.plan import plan_export
    from fewbit.export.target import ExportSettings
    from fewbit.export.targets import find_target
    from fewbit.formats.registry import parse_format
    from fewbit.model.weights import open_model
    from fewbit.report.export import print_export_plan

    settings = ExportSettings(
        dtype=parse_format(dtype), split_bytes=_bytes(split_size), shard_bytes=_bytes(shard_size)
    )
    target = find_target(to, settings)
    with open_model(locate(model)) as source:
        planned = plan_export(source, target)
        if plan:
            deliver(planned.record, json, print_export_plan)
            return 0
        if out is None:
            raise UsageError("--out is missing; name the file or folder to write, or give --plan.")
        _write(planned, out, settings, json, requantize=requantize)
    return 0


def _bytes(size: str | None) -> int | None:
    from fewbit.quantization.target import parse_size

    return None if size is None else parse_size(size).bytes


def _write(
    planned: PlannedExport,
    out: Path,
    settings: ExportSettings,
    json: Path | None,
    *,
    requantize: bool,
) -> None:
    """Write the export, and show its manifest; formats change only where that is allowed."""
    from fewbit.checkpoint.gguf_split import written_as
    from fewbit.cli.output import STDOUT, deliver
    from fewbit.cli.progress import watched
    from fewbit.export.job import export as write
    from fewbit.export.job import require_free
    from fewbit.export.plan import require_held
    from fewbit.report.card import folder_card
    from fewbit.report.export import print_exported

    require_free(planned, out)
    if not requantize:
        require_held(planned)
    with watched() as progress:
        manifest = write(planned, out, settings, progress, folder_card)
    deliver(manifest, json, print_exported)
    if json != STDOUT:
        print(written_as(out))
