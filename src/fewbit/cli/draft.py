"""`fewbit draft`: what makes a model a better draft."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.calibration import TextOptions
from fewbit.cli.draft_train import train
from fewbit.cli.output import JsonOption
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.model.weights import ModelSource
    from fewbit.quantization import QuantizationPlan
    from fewbit.quantization.draft import DraftSettings
    from fewbit.quantization.estimate import Workload


__all__ = ["prepare", "train"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DraftTextOptions(TextOptions):
    """Text that is run through a draft: less than `quantize` reads, as its quality is speed."""

    calibration_windows: Annotated[int, Parameter(help="Windows of calibration text at most.")] = 32


DRAFT_TEXT = DraftTextOptions()


def prepare(  # noqa: PLR0913
    model: Annotated[str, Parameter(name="DRAFT")],
    /,
    *,
    target: Annotated[str, Parameter(name="--for")],
    out: Path | None = None,
    tokens: int = 32_768,
    recipe: str | None = None,
    text: DraftTextOptions = DRAFT_TEXT,
    plan: Annotated[bool, Parameter(negative="")] = False,
    threads: int | None = None,
    json: JsonOption = None,
) -> int:
    """Prepare a model to draft for another: a head of frequent tokens, fast weights.

    Example: fewbit draft prepare small.gguf --for large.gguf --out draft.gguf

    What is written can do nothing but draft: fewbit generate TARGET --draft FILE. The same command
    goes on with a job that was stopped.

    Args:
        model: The draft: a name, a path to a GGUF file, or a folder.
        target: The model that it will draft for, of the same tokens.
        out: A new file that ends in .gguf.
        tokens: How many tokens the head keeps.
        recipe: How matrices are quantized, a built-in recipe of GGUF types or a .toml file; by
            default to q4_0 by the importance of inputs, the input table kept.
        text: What tokens are counted in, beside the text that Python carries, and what weights are
            quantized on.
        plan: Print tensors, sizes, memory, disk and time, from headers alone, and do nothing.
        threads: Of the model while it is calibrated; all cores.
        json: Write the plan or the manifest to this file too; - prints it on stdout instead.
    """
    from fewbit.cli.output import STDOUT, deliver
    from fewbit.cli.planning import plan_report
    from fewbit.cli.progress import watched
    from fewbit.cli.pull import locate
    from fewbit.cli.stopping import stoppable
    from fewbit.model.weights import open_model
    from fewbit.quantization.draft import plan_draft, prepare_draft
    from fewbit.quantization.job import claimed_job
    from fewbit.report.plan import print_plan
    from fewbit.report.quantization import print_manifest

    with open_model(locate(model)) as source, watched() as progress, stoppable() as stop:
        settings = _settings(_target(source, locate(target)), tokens, recipe, text, threads)
        planned, work = plan_draft(source, settings), _workload(settings, text)
        if plan:
            deliver(plan_report(planned, work, out, None), json, print_plan)
            return 0
        out = _require_output(source, planned, work, out)
        with claimed_job(out, stop=stop) as job:
            manifest = prepare_draft(source, settings, out, job, progress)
    deliver(manifest, json, print_manifest)
    if json != STDOUT:
        print(out)
    return 0


def _require_output(
    source: ModelSource, planned: QuantizationPlan, work: Workload, out: Path | None
) -> Path:
    """Return the output, if it may be written; raises UsageError and OutputError."""
    from fewbit.quantization.draft import require_gguf
    from fewbit.quantization.estimate import require_disk
    from fewbit.quantization.writing import require_output

    if out is None:
        raise UsageError("--out is missing; name the file to write, or give --plan.")
    require_gguf(out)
    require_output(source, planned.container, out)
    require_disk(planned, work, out)
    return out


def _target(source: ModelSource, path: Path) -> str:
    """Return the target's name, if the draft has tokens of its own to propose."""
    from fewbit.model.weights import open_model
    from fewbit.speculate.pair import require_usable
    from fewbit.speculate.pair_member import member_of, pair_of

    with open_model(path) as target:
        pair = pair_of(member_of(target), member_of(source))
        require_usable(pair)
        return pair.target.name


def _settings(
    target: str, tokens: int, recipe: str | None, text: TextOptions, threads: int | None
) -> DraftSettings:
    from fewbit.quantization.draft import RECIPE, DraftSettings
    from fewbit.quantization.making import Request
    from fewbit.recipes import find

    return DraftSettings(
        target=target,
        tokens=tokens,
        recipe=RECIPE if recipe is None else find(recipe),
        text=text.settings(threads),
        request=Request(text=text.request),
        threads=threads,
    )


def _workload(settings: DraftSettings, text: TextOptions) -> Workload:
    from fewbit.quantization import needs_text
    from fewbit.quantization.estimate import Workload

    if not needs_text(settings.recipe):
        return Workload()
    rows = text.calibration_windows * text.window
    return Workload(rows=rows, window=text.window, samples=0 if text.calibration else rows // 2)
