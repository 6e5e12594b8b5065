"""`fewbit validate`: six questions about a target with a draft, on one page."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.bench_draft import DraftOptions
from fewbit.cli.drafts import DraftTokensOption
from fewbit.cli.measuring import AxesOptions
from fewbit.cli.output import HtmlOption, JsonOption
from fewbit.cli.running import RUNNING, RunningOptions, counts
from fewbit.errors import IdentityError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fewbit.certify.cases import CertifySettings
    from fewbit.evaluate.axis import Axis
    from fewbit.evaluate.evaluation import EvaluationSettings
    from fewbit.evaluate.machine.speed import SpeedSettings
    from fewbit.model.weights import ModelSource
    from fewbit.records.evaluation import Evaluation
    from fewbit.records.pair import PairReport
    from fewbit.records.speculation import TimedSpeculation
    from fewbit.validate import Evidence

_EXAMPLE = "1,4"
_PROMPT = 512  # of requests without a draft, of which none is measured here


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class QualityOptions(AxesOptions):
    """What the target is measured on against its source."""

    gate: Annotated[Path | None, Parameter(help="A gate.toml with the margins.")] = None
    work: Annotated[
        Path | None, Parameter(help="A folder that keeps what is measured, for another run.")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """How the draft is used in service, which is how it is checked and measured."""

    draft_tokens: DraftTokensOption = 8
    concurrency: Annotated[
        str, Parameter(help="How many requests at once; several numbers, separated by commas.")
    ] = _EXAMPLE
    tokens: Annotated[int, Parameter(help="Tokens that each measured request generates.")] = 64
    turns: Annotated[
        int, Parameter(help="Turns of each kind and concurrency, plain and with the draft.")
    ] = 4
    prompts: Annotated[
        Path | None, Parameter(help="What speed is measured on, as `fewbit bench` takes it.")
    ] = None
    long: Annotated[
        bool,
        Parameter(
            negative="",
            help="Also sample from the model itself, with 80% power for a bias of 0.01; minutes.",
        ),
    ] = False

    def drafting(self, draft: str) -> DraftOptions:
        """Return how a draft's speed is measured; raises UsageError for none."""
        found = DraftOptions(
            draft=draft, draft_tokens=self.draft_tokens, prompts=self.prompts, turns=self.turns
        )
        if not found.named:
            raise UsageError("--draft is none, and the six questions are about a draft; name one.")
        return found

    def certifying(self, together: tuple[int, ...]) -> CertifySettings:
        """Return how it is certified; raises UsageError."""
        from fewbit.certify.cases import CertifySettings

        lengths = tuple(sorted({1, self.draft_tokens}))
        return CertifySettings(lengths=lengths, together=together, long=self.long)


QUALITY = QualityOptions()
SERVICE = ServiceOptions()


def validate(  # noqa: PLR0913
    target: Annotated[str, Parameter(name="TARGET")],
    /,
    *,
    draft: str,
    against: str,
    service: ServiceOptions = SERVICE,
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
        service: How the draft is used.
        quality: What the target is measured on.
        running: How the target runs.
        html: Write the page to this file; it opens offline.
        json: Write the record to this file; - prints it on stdout instead of the answers.
    """
    from fewbit.cli.output import deliver_with_page
    from fewbit.cli.pull import locate
    from fewbit.report.validation import print_validation, validation_page
    from fewbit.validate import validated

    began = time.perf_counter()
    drafting = service.drafting(draft)
    path, source = locate(target), locate(against)
    evidence = _evidence(path, source, drafting, service, quality, running)
    found = validated(source.name, evidence, time.perf_counter() - began)
    deliver_with_page(found, json, print_validation, html, validation_page)
    return found.outcome.exit_code


def _evidence(  # noqa: PLR0913, PLR0917
    target: Path,
    source: Path,
    drafting: DraftOptions,
    service: ServiceOptions,
    quality: QualityOptions,
    running: RunningOptions,
) -> Evidence:
    """Gather what the questions are answered from.

    What is asked for wrongly is refused before anything runs, and the certificate comes before the
    evaluation: it opens the draft, which may not fit.
    """
    from fewbit.cli.certify import certificate_of
    from fewbit.cli.stopping import resumable
    from fewbit.validate import Evidence, usable

    together = counts("concurrency", service.concurrency, _EXAMPLE)
    certifying = service.certifying(together)
    drafting.settings(service.tokens, together)
    speed = running.speed(_PROMPT, service.tokens, together)
    axes, measuring = _measuring(quality, running)
    pair, work = _pair(target, drafting.draft), quality.work
    fits = usable(pair)
    certificate = timed = None
    if fits:
        _tell("Certifying the draft, for questions 3 and 4.")
        certificate = certificate_of(target, drafting.draft, None, certifying, running, work)
    else:
        _tell("The draft cannot be used, so that questions 3, 4 and 6 are not asked.")
    _tell("Measuring the target against its source, for questions 1 and 5.")
    evaluation, refused = _quality(source, target, axes, measuring)
    if fits:
        _tell("Timing the target with the draft and without, for question 6.")
        with resumable(work):
            timed = _timed(target, drafting, speed, work)
    return Evidence(
        pair=pair,
        evaluation=evaluation,
        refused=refused,
        certificate=certificate,
        speculation=None if timed is None else timed.report,
        timed=None if timed is None else timed.moment,
    )


def _tell(stage: str) -> None:
    print(stage, file=sys.stderr)


def _timed(
    target: Path, drafting: DraftOptions, speed: SpeedSettings, work: Path | None
) -> TimedSpeculation:
    """Measure the target with the draft, or take what an earlier run kept of just that."""
    from fewbit.cli.bench_draft import speculation_report
    from fewbit.evaluate.conditions import host
    from fewbit.evaluate.machine.turns import moment, now
    from fewbit.records.kept import file_of, fingerprint, open_kept, program_digest
    from fewbit.records.speculation import TimedSpeculation
    from fewbit.runtime.native import threads_of

    began = now()

    def measure() -> TimedSpeculation:
        return TimedSpeculation(
            report=speculation_report(target, speed, drafting), moment=moment(began)
        )

    models = _models(target, drafting.draft)
    if work is None or models is None:
        return measure()
    settings = drafting.settings(speed.tokens, speed.concurrency)
    asked = drafting.draft, drafting.draft_tokens, drafting.draft_costs, settings, speed
    machine = threads_of(speed.threads), host(), program_digest()
    kept = open_kept(file_of(work, fingerprint(models), fingerprint("speculation", asked, machine)))
    return kept.once("speculation", TimedSpeculation, measure)


def _models(target: Path, draft: str) -> list[object] | None:
    """Return what tells a target and the model of its draft from others; None for heads."""
    from fewbit.cli.drafts import chosen_draft
    from fewbit.model.weights import open_draft_model, open_model

    chosen = chosen_draft(draft, 1)
    if chosen.head is not None:
        return None
    with open_model(target) as ours:
        found = [_deciding(ours)]
    if chosen.path is not None:
        with open_draft_model(chosen.path) as theirs:
            found.append(_deciding(theirs))
    return found


def _deciding(model: ModelSource) -> object:
    """Return a model's tensors and what says how it reads and runs, which a GGUF's header has."""
    from fewbit.checkpoint.checkpoint import HuggingFaceFacts, content_digest

    facts = model.checkpoint.facts
    said = facts if isinstance(facts, HuggingFaceFacts) else None
    return content_digest(model.checkpoint), model.checkpoint.stamps(), said


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


def _measuring(
    quality: QualityOptions, running: RunningOptions
) -> tuple[tuple[Axis, ...], EvaluationSettings]:
    """Return what the target is measured on, and how; refuses names that there are not."""
    from fewbit.cli.measuring import MeasuringOptions
    from fewbit.evaluate.axes import axes_named
    from fewbit.evaluate.evaluation import require_judgeable
    from fewbit.evaluate.gating.file import find_gate

    gate = find_gate(quality.gate)
    axes = axes_named(quality.names, quality.options(gate, running.threads))
    require_judgeable(axes, gate)
    measuring = MeasuringOptions(
        threads=running.threads,
        activations=running.activations,
        keep_packed=running.keep_packed,
        kv=running.kv,
        rotate_keys=running.rotate_keys,
    )
    return axes, measuring.settings(gate, quality.work)


def _quality(
    source: Path, target: Path, axes: Sequence[Axis], measuring: EvaluationSettings
) -> tuple[Evaluation | None, str]:
    """Measure the target against its source; where they are not one model, say why."""
    from fewbit.cli.eval import measured

    try:
        return measured(source, target, axes, measuring), ""
    except IdentityError as error:
        return None, str(error)
