"""`fewbit validate`: six questions about a target with a draft, on one page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.bench_draft import DraftOptions
from fewbit.cli.output import HtmlOption, JsonOption
from fewbit.cli.running import RUNNING, RunningOptions, counts
from fewbit.errors import IdentityError, UsageError

if TYPE_CHECKING:
    from fewbit.records.evaluation import Evaluation
    from fewbit.records.pair import PairReport

_EXAMPLE = "1,4"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class QualityOptions:
    """What the target is measured on against its source."""

    axes: Annotated[
        str, Parameter(help="Which axes, with commas, as in eval; the quick ones by default.")
    ] = ""
    gate: Annotated[Path | None, Parameter(help="A gate.toml with the margins.")] = None
    suite: Annotated[Path | None, Parameter(help="A folder of tasks of your own.")] = None
    text: Annotated[Path | None, Parameter(help="A UTF-8 file, plain or .jsonl.")] = None
    work: Annotated[
        Path | None, Parameter(help="A folder that keeps what is measured, for another run.")
    ] = None


QUALITY = QualityOptions()


def validate(  # noqa: PLR0913
    target: Annotated[str, Parameter(name="TARGET")],
    /,
    *,
    draft: str,
    against: str,
    draft_tokens: int = 8,
    concurrency: str = _EXAMPLE,
    tokens: int = 64,
    turns: int = 4,
    prompts: Path | None = None,
    long: Annotated[bool, Parameter(negative="")] = False,
    quality: QualityOptions = QUALITY,
    running: RunningOptions = RUNNING,
    html: HtmlOption = None,
    json: JsonOption = None,
) -> int:
    """Answer six questions about a quantized target with a draft, each with its evidence.

    Exit code 0 is ACCEPT (six times yes), 3 REJECT (one is no), 4 INCONCLUSIVE.

    Args:
        target: The quantized model: a name, a GGUF file or a folder.
        draft: What drafts, as `fewbit generate --draft` takes it.
        against: The exact source of the target.
        draft_tokens: Tokens drafted at once, at most.
        concurrency: How many requests at once; several numbers, separated by commas.
        tokens: Tokens that each measured request generates.
        turns: Turns of each kind of prompt and concurrency, plain and with the draft.
        prompts: What speed is measured on, as `fewbit bench --prompts` takes it.
        long: Also sample from the model itself, with 80% power for a bias of 0.01; minutes.
        quality: What the target is measured on.
        running: How the target runs.
        html: Write the page to this file; it opens offline.
        json: Write the record to this file; - prints it on stdout instead of the answers.
    """
    from fewbit.atomic import write_bytes
    from fewbit.certify.cases import CertifySettings
    from fewbit.cli.bench_draft import speculation_report
    from fewbit.cli.certify import certificate_of
    from fewbit.cli.output import deliver
    from fewbit.cli.pull import locate
    from fewbit.report.validation import print_validation, validation_page
    from fewbit.validate import Evidence, validated

    began = time.perf_counter()
    together = counts("concurrency", concurrency, _EXAMPLE)
    drafting = DraftOptions(draft=draft, draft_tokens=draft_tokens, prompts=prompts, turns=turns)
    if not drafting.named:
        raise UsageError("--draft is none, and the six questions are about a draft; name one.")
    drafting.settings(tokens, together)  # says what is wrong with them before anything runs
    certifying = CertifySettings(
        lengths=tuple(sorted({1, draft_tokens})), together=together, long=long
    )
    path, source = locate(target), locate(against)
    pair = _pair(path, draft)
    evaluation, refused = _quality(source, path, quality, running)
    certificate = certificate_of(path, draft, None, certifying, running)
    speed = running.speed(512, tokens, together)
    found = validated(
        source.name,
        Evidence(
            pair=pair,
            certificate=certificate,
            evaluation=evaluation,
            refused=refused,
            speculation=speculation_report(path, speed, drafting),
        ),
        time.perf_counter() - began,
    )
    if html is not None:
        write_bytes(html, validation_page(found).encode())
    deliver(found, json, print_validation)
    return found.outcome.exit_code


def _pair(target: Path, draft: str) -> PairReport | None:
    """Compare the target with the draft's model; None where the draft has none."""
    from fewbit.cli.drafts import chosen_draft
    from fewbit.model.weights import open_draft_model, open_model
    from fewbit.speculate.pair import check_pair
    from fewbit.speculate.pair_member import member_of

    model = chosen_draft(draft, 1).path
    if model is None:
        return None
    with open_model(target) as ours, open_draft_model(model) as theirs:
        return check_pair(member_of(ours), member_of(theirs))


def _quality(
    source: Path, target: Path, quality: QualityOptions, running: RunningOptions
) -> tuple[Evaluation | None, str]:
    """Measure the target against its source; where they are not one model, say why."""
    from fewbit.cli.eval import measured
    from fewbit.cli.measuring import MeasuringOptions
    from fewbit.evaluate.axes import AxisOptions, axes_named
    from fewbit.evaluate.gate_file import find_gate

    gate = find_gate(quality.gate)
    options = AxisOptions(
        text=quality.text, suite=quality.suite, threads=running.threads, level=gate.level
    )
    names = [name.strip() for name in quality.axes.split(",") if name.strip()]
    axes = axes_named(names, options)
    measuring = MeasuringOptions(
        threads=running.threads,
        activations=running.activations,
        keep_packed=running.keep_packed,
        kv=running.kv,
        rotate_keys=running.rotate_keys,
    )
    try:
        return measured(source, target, axes, measuring.settings(gate, quality.work)), ""
    except IdentityError as error:
        return None, str(error)
