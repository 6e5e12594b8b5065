"""A candidate against its exact source, from two paths to a verdict.

Identity comes first: a mismatch ends the run before anything is measured. Then the axes that are
asked for run one after the other over the arms, and the gate judges what they brought.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec.structs import replace as replaced

from fewbit.atomic import claimed
from fewbit.errors import OutputError
from fewbit.evaluate.arms import Arms, Party, Role, local_party
from fewbit.evaluate.artefact.scan import AXIS as SCAN
from fewbit.evaluate.artefact.scan import BRINGS, scan
from fewbit.evaluate.axis import Axis
from fewbit.evaluate.conditions import conditions
from fewbit.evaluate.floor import Floor, floor_of
from fewbit.evaluate.gating.declared import require_acceptable, require_known
from fewbit.evaluate.gating.file import find_gate
from fewbit.evaluate.gating.gate import judge, waived
from fewbit.evaluate.gating.sequential import at_look
from fewbit.evaluate.identity import Subject, check_identity, describe_prefix, origin_note
from fewbit.evaluate.subject import open_subject
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.decoder import build_program
from fewbit.model.facts import model_facts
from fewbit.model.runner import RunSettings
from fewbit.program import CacheType
from fewbit.progress import Progress, unwatched
from fewbit.records.evaluation import ArmFacts, Evaluation, Identity
from fewbit.records.gate import Gate, Waiver
from fewbit.records.kernels import Activations, KernelRecord, kernel_fallbacks
from fewbit.records.measurement import AxisResult
from fewbit.records.model import ModelFacts
from fewbit.records.outcome import Outcome
from fewbit.records.scan import ScanDetails, TensorError
from fewbit.runtime.native import threads_of
from fewbit.tokens.chat_template import ChatTemplate


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How a candidate is run and judged; the axes say what is measured."""

    gate: Gate = field(default_factory=lambda: find_gate(None))
    work: Path | None = None
    """A folder that outcomes are kept in, so that a run that was stopped goes on, and a source's
    outcomes serve many candidates; None keeps nothing."""
    screen: tuple[Axis, ...] = ()
    """A short first look: a candidate that it rejects at the level of an early look is measured no
    further."""
    floor: bool = True
    """Whether the source is run under another precision too."""
    executor: str = "native"
    threads: int | None = None
    """None for every core."""
    isa: str | None = None
    """An instruction set to force; None for the best."""
    activations: Activations | None = None
    """How the inputs of the candidate's layers with integer weights are rounded; None for what the
    candidate says itself, as the source always does."""
    strict: bool = False
    """Refuse models of which some matrix would not be run as it is stored."""
    keep_packed: bool = False
    """Keep both models' packed weights in files beside them, for a faster start the next time."""
    kv: CacheType = CacheType.F16
    """How the candidate's keys and values are stored; the source's stay f16."""
    rotate_keys: bool = False
    """Whether the candidate's keys pass a Hadamard transform before they are stored."""

    def __post_init__(self) -> None:
        self.run_settings()

    def run_settings(self) -> RunSettings:
        """Return how the source is run; an axis says what it needs room for."""
        return RunSettings(
            executor=self.executor,
            threads=self.threads,
            isa=self.isa,
            keep_packed=self.keep_packed,
            strict=self.strict,
        )

    def candidate_settings(self) -> RunSettings:
        """Return how the candidate is run: as the source but for its activations and KV cache."""
        return replace(
            self.run_settings(),
            activations=self.activations,
            cache_type=self.kv,
            rotate_keys=self.rotate_keys,
        )


def evaluate(
    source: Path,
    candidate: Path,
    axes: Sequence[Axis],
    settings: EvaluationSettings | None = None,
    progress: Progress = unwatched,
) -> Evaluation:
    """Measure a candidate against its exact source and judge it.

    Raises:
        IdentityError: the two are not one model in two forms.
        NumericalError: a logit or weight is NaN or infinite; it is located.
        OutputError: another run has the work folder, or it cannot be written.
        UsageError: the gate names a slice or finding that the axes cannot have; or as below.
        UsageError, BadFileError, MissingError, UnsupportedError, KernelError: a model cannot be
            loaded, or an axis not be run on it.
    """
    chosen = settings or EvaluationSettings()
    require_judgeable(axes, chosen.gate)
    with working(chosen.work), opened(source) as one, opened(candidate) as other:
        return _evaluate(_Comparison.of(one, other, chosen), axes, progress)


def require_judgeable(axes: Sequence[Axis], gate: Gate) -> None:
    """Refuse a gate that names what neither the axes nor the scan can have; as `require_known`."""
    require_known([BRINGS, *(axis.brings for axis in axes)], gate)


def require_decidable(axes: Sequence[Axis], gate: Gate) -> None:
    """Refuse a gate that can accept nothing measured by these axes; as `require_acceptable`."""
    require_acceptable([BRINGS, *(axis.brings for axis in axes)], gate)


@contextmanager
def opened(path: Path) -> Iterator[Subject]:
    """Open a model as a party for a block; raises as `open_subject`."""
    subject = open_subject(path)
    try:
        yield subject
    finally:
        subject.model.checkpoint.close()


@contextmanager
def working(work: Path | None) -> Iterator[None]:
    """Make a work folder and hold it for this run alone."""
    with nullcontext() if work is None else claimed(work):
        if work is not None:
            try:
                work.mkdir(exist_ok=True)
            except OSError as error:
                raise OutputError(
                    f"{work} cannot be written ({error.strerror}); choose another --work."
                ) from error
        yield


@dataclass(frozen=True)
class _Comparison:
    """Two models that are one, and how they are run."""

    source: Subject
    candidate: Subject
    identity: Identity
    settings: EvaluationSettings
    kernels: Mapping[Role, tuple[KernelRecord, ...]]
    floor: Floor | None

    @classmethod
    def of(cls, source: Subject, candidate: Subject, settings: EvaluationSettings) -> _Comparison:
        """Check that they are one model, and choose their kernels; nothing is loaded."""
        identity = check_identity(source, candidate)
        for model, run in (
            (source.model, settings.run_settings()),
            (candidate.model, settings.candidate_settings()),
        ):  # says what a cache does not fit before anything is measured
            build_program(model.config, run.cache_type, rotate_keys=run.rotate_keys)
        kernels = {
            Role.SOURCE: planned_kernels(source.model, settings.run_settings()),
            Role.CANDIDATE: planned_kernels(candidate.model, settings.candidate_settings()),
        }
        floor = floor_of(settings.run_settings(), kernels[Role.SOURCE]) if settings.floor else None
        return cls(source, candidate, identity, settings, kernels, floor)

    def arms(self) -> Arms:
        """Return what the axes run on."""
        parties: dict[Role, Party] = {
            Role.SOURCE: local_party(self.source, self.settings.run_settings())
        }
        if self.floor is not None:
            parties[Role.FLOOR] = local_party(self.source, self.floor.settings)
        parties[Role.CANDIDATE] = local_party(self.candidate, self.settings.candidate_settings())
        return Arms(parties, self.settings.work)


def _evaluate(found: _Comparison, axes: Sequence[Axis], progress: Progress) -> Evaluation:
    started = time.perf_counter()
    settings, source, candidate = found.settings, found.source, found.candidate
    results, gate = _measure(found, axes, progress)
    results = waived(results, gate)
    judgements, verdict = judge(results, gate)
    facts = model_facts(source.model)
    errors = _errors(results)
    kernels = found.kernels
    return Evaluation(
        source=facts,
        candidate=model_facts(candidate.model),
        identity=found.identity,
        arms=tuple(_arm_facts(found)),
        axes=results,
        gate=gate,
        judgements=judgements,
        verdict=verdict,
        tensors=errors,
        source_kernels=kernels[Role.SOURCE],
        candidate_kernels=kernels[Role.CANDIDATE],
        conditions=conditions(
            kernels[Role.CANDIDATE],
            threads_of(settings.threads),
            settings.executor,
            kv=settings.kv.value,
            rotated_keys=settings.rotate_keys,
        ),
        notes=tuple(_notes(found, facts, errors)),
        seconds=time.perf_counter() - started,
    )


def _measure(
    found: _Comparison, axes: Sequence[Axis], progress: Progress
) -> tuple[tuple[AxisResult, ...], Gate]:
    """Look at the stored bytes, then run the axes; return what judges them, too.

    What the bytes alone reject is not run, nor is more than a short look where that rejects.
    """
    settings, gate = found.settings, found.settings.gate
    threads = threads_of(settings.threads)
    progress("scan: weights", 0, 1)
    scanned = scan(found.source, found.candidate, threads=threads)
    progress("scan: weights", 1, 1)
    if not all(f.passed or f.waived for f in waived([scanned], gate)[0].findings):
        return (scanned,), replaced(gate, waive=_of_scan(gate))
    arms = found.arms()
    if not settings.screen:
        return (scanned, *_run(arms, axes, progress)), gate
    early = _early(gate)
    looked = (scanned, *_run(arms, settings.screen, progress))
    if judge(looked, early)[1].outcome is Outcome.REJECT:
        return looked, early
    return (scanned, *_run(arms, axes, progress)), at_look(gate, 1, 2)


def _run(arms: Arms, axes: Sequence[Axis], progress: Progress) -> tuple[AxisResult, ...]:
    return tuple(
        axis.run(arms, _numbered(progress, number, len(axes)))
        for number, axis in enumerate(axes, start=1)
    )


def _numbered(progress: Progress, number: int, count: int) -> Progress:
    """Say of how many axes this is which, where there are several."""
    if count == 1:
        return progress
    return lambda what, done, total: progress(f"{what} (axis {number} of {count})", done, total)


def _early(gate: Gate) -> Gate:
    """Return the gate of a first look, which measures less than what it may ask for."""
    rules = tuple(replaced(rule, optional=True) for rule in gate.slices)
    return replaced(at_look(gate, 0, 2), slices=rules)


def _of_scan(gate: Gate) -> tuple[Waiver, ...]:
    """Return the waivers of what a scan finds; others have nothing to waive where it is alone."""
    return tuple(waiver for waiver in gate.waive if waiver.finding.startswith(f"{SCAN}/"))


def _errors(results: Sequence[AxisResult]) -> tuple[TensorError, ...]:
    details = (axis.details for axis in results)
    return next((d.tensors for d in details if isinstance(d, ScanDetails)), ())


def _arm_facts(found: _Comparison) -> Iterator[ArmFacts]:
    run = {
        Role.SOURCE: "as the model says",
        Role.FLOOR: None if found.floor is None else f"the source, {found.floor.words}",
        Role.CANDIDATE: _candidate_words(found.settings),
    }
    subjects = {Role.CANDIDATE: found.candidate}
    for role, words in run.items():
        if words is not None:
            yield arm_facts(role, words, subjects.get(role, found.source))


def arm_facts(role: Role, run: str, subject: Subject) -> ArmFacts:
    """Return how an arm of a model on disk runs, in words, and how its prompts begin."""
    template = subject.chat_template
    return ArmFacts(
        role=role.value,
        run=run,
        begins=describe_prefix(subject.tokenizer),
        template="" if template is None else ChatTemplate(template).digest,
    )


def _candidate_words(settings: EvaluationSettings) -> str:
    parts = []
    if settings.activations is not None:
        parts.append(f"activations {settings.activations.value}")
    if settings.kv is not CacheType.F16:
        parts.append(f"keys and values in {settings.kv.value}")
    if settings.rotate_keys:
        parts.append("keys rotated")
    return ", ".join(parts) or "as the model says"


def _notes(found: _Comparison, facts: ModelFacts, errors: tuple[TensorError, ...]) -> Iterator[str]:
    """Yield what a reader must know to read the figures rightly."""
    source, candidate = found.source, found.candidate
    if origin := origin_note(source, candidate):
        yield origin
    yield from _cache_notes(found.settings)
    yield from dict.fromkeys((*source.model.checkpoint.notes, *candidate.model.checkpoint.notes))
    for name, kernels in (("source", Role.SOURCE), ("candidate", Role.CANDIDATE)):
        for fallback in kernel_fallbacks(found.kernels[kernels]):
            yield f"Not run as stored, in the {name}: {fallback}"
    kept = [e for e in errors if e.relative_error == 0.0 and e.source_format == e.candidate_format]
    if kept and len(kept) < len(errors):
        yield f"{len(kept)} of {len(errors)} matrices are stored exactly as the source has them."
    if facts.quantized:
        widest = max(facts.formats, key=lambda share: share.weights)
        yield (
            f"The source is itself quantized ({widest.format}, {facts.bits_per_weight:.2f} bits "
            "per weight): these figures say what the candidate loses against that file, not "
            "against the model that the file was made from."
        )
    if any(kernel.activations != "f32" for kernel in found.kernels[Role.SOURCE]):
        yield (
            "The source's integer layers round their inputs to 8 bits, as they do in use; that "
            "rounding belongs to the source and is not counted against the candidate."
        )


def _cache_notes(settings: EvaluationSettings) -> Iterator[str]:
    if settings.kv is not CacheType.F16 or settings.rotate_keys:
        rotated = ", its keys rotated" if settings.rotate_keys else ""
        yield (
            f"The candidate ran on a KV cache of {settings.kv.value}{rotated}, the source on one "
            "of f16: the figures count what that cache loses too."
        )
