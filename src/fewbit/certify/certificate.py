"""One certificate: every check in turn, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fewbit.certify.cases import CertifySettings
from fewbit.certify.enumeration import Enumerated, enumerated_once
from fewbit.certify.equality import check_equality
from fewbit.certify.partition import check_sampling
from fewbit.certify.parts import Parts
from fewbit.certify.planted import PENALIZED, PLAIN, run_controls
from fewbit.certify.rollback import check_caches, check_draft_caches
from fewbit.certify.tiny import write_draft, write_head, write_target
from fewbit.engine.loaded import LoadedModel, load_model
from fewbit.engine.loaded_draft import load_draft
from fewbit.model.facts import model_facts
from fewbit.model.runner import RunSettings
from fewbit.progress import Progress
from fewbit.records.certificate import (
    CacheCase,
    Certificate,
    ControlCase,
    EnumerationCase,
    EqualityCheck,
    SamplingCheck,
    Standing,
)
from fewbit.records.conditions import Conditions
from fewbit.records.generation import DraftModelRecord
from fewbit.sampling import SamplingParams
from fewbit.speculate.drafts import Draft, kernels_of

TINY = RunSettings(threads=1, context=64, sequences=4)
"""How tiny models run, where nothing else is asked for: with pages for branches too."""

TINY_DRAFT, TINY_HEAD = "tiny-draft", "tiny-head"
"""Folders of what stands in for a model and for a head."""

TRUNCATED = SamplingParams(temperature=1.3, top_k=3, top_p=0.9, min_p=0.05, logit_bias={1: -0.7})


@dataclass(frozen=True)
class OpenDraft:
    """The draft of a certificate, opened beside the target.

    `beside_tiny` opens a draft of the same kind beside a tiny target; a model or a head is replaced
    by the one of that name in the folder it is given. `tiny` is how tiny models run.
    """

    draft: Draft
    model: DraftModelRecord | None
    beside_tiny: Callable[[LoadedModel, Path], Draft]
    tiny: RunSettings = TINY
    notes: tuple[str, ...] = ()
    """About target and draft, for the certificate."""


@dataclass(frozen=True)
class Checks:
    """What was checked."""

    equality: EqualityCheck
    enumerations: tuple[EnumerationCase, ...]
    controls: tuple[ControlCase, ...]
    caches: tuple[CacheCase, ...]
    sampling: SamplingCheck | None
    draft_caches: tuple[CacheCase, ...] = ()


def certify(  # noqa: PLR0913, PLR0917
    target: LoadedModel,
    drafting: OpenDraft,
    settings: CertifySettings,
    conditions: Conditions,
    watch: Progress,
    parts: Parts | None = None,
) -> Certificate:
    """Check that a draft changes nothing of what a target says.

    Args:
        target: the model.
        drafting: the draft beside it.
        settings: how much is run.
        conditions: of the run.
        watch: told of progress.
        parts: keeps what has ended, and has what an earlier run kept.

    Raises:
        FewbitError: a request failed, or a tiny model could not be made.
    """
    parts = parts or Parts()
    checks = _checked(target, drafting, settings, watch, parts)
    standing, reasons = standing_of(checks)
    return Certificate(
        standing=standing,
        reasons=reasons,
        target=model_facts(target.runner.source),
        draft=drafting.draft.name,
        draft_model=drafting.model,
        draft_kernels=kernels_of(drafting.draft),
        notes=drafting.notes,
        preserved=preserved(target),
        equality=checks.equality,
        enumerations=checks.enumerations,
        controls=checks.controls,
        caches=checks.caches,
        draft_caches=checks.draft_caches,
        sampling=checks.sampling,
        kernels=target.runner.kernels,
        conditions=conditions,
        seconds=parts.seconds,
    )


def _checked(
    target: LoadedModel,
    drafting: OpenDraft,
    settings: CertifySettings,
    watch: Progress,
    parts: Parts,
) -> Checks:
    """Make every check, those on tiny models first."""
    draft, longest = drafting.draft, max(settings.lengths)
    with TemporaryDirectory(prefix="fewbit-certify-") as folder:
        tiny = check_tiny(Path(folder), drafting, settings.branches, watch, parts)
    equality = check_equality(target, draft, settings, watch, parts)
    watch("caches", 0, 1)
    caches = check_caches(target, draft, longest, settings.branches, parts)
    own = check_draft_caches(target, draft, longest, parts)
    sampling = None
    if settings.long:
        sampling = check_sampling(target, draft, longest, watch, parts=parts)
    enumerations, controls = tiny
    return Checks(equality, enumerations, controls, caches, sampling, own)


def check_tiny(
    folder: Path, drafting: OpenDraft, branches: int, watch: Progress, parts: Parts
) -> tuple[tuple[EnumerationCase, ...], tuple[ControlCase, ...]]:
    """Enumerate the draft's kind and a draft model beside a tiny target, and plant the bugs."""
    target = load_model(write_target(folder / "tiny-target"), drafting.tiny)
    model = write_draft(folder / TINY_DRAFT)
    write_head(folder / TINY_HEAD)
    drawing = Enumerated("", target, load_draft(model, target, drafting.tiny).draft, PLAIN, "")
    drawing = replace(drawing, name=drawing.draft.name)
    cases = list(_enumerated(target, drafting.beside_tiny(target, folder), drawing))
    cases += list(_enumerated_trees(cases[0], drawing)) if branches else []
    enumerations = []
    for i, case in enumerate(cases):
        watch("enumeration", i, len(cases))
        enumerations.append(enumerated_once(case, parts))
    return tuple(enumerations), run_controls(drawing, watch, parts)


def preserved(target: LoadedModel) -> str:
    """Say whose distribution speculation leaves as it is."""
    kernels = target.runner.kernels
    formats = ", ".join(sorted({kernel.format for kernel in kernels}))
    rounding = ", ".join(sorted({kernel.activations for kernel in kernels}))
    return (
        f"the distribution of {target.runner.source.path.name} as it is run here: weights in "
        f"{formats}, activations {rounding}, keys and values in "
        f"{target.runner.program.cache_type.value}. If that is a quantized copy of a model, it is "
        "the copy's distribution, not the original's; how far those are apart is what 'fewbit "
        "eval' measures. Bit equality holds on one machine and build; that the distribution is "
        "the target's holds on any."
    )


def standing_of(checks: Checks) -> tuple[Standing, tuple[str, ...]]:
    """Return the verdict and the reasons for it."""
    if faults := tuple(_faults(checks)):
        return Standing.NOT_CERTIFIED, faults
    if gaps := tuple(_gaps(checks)):
        return Standing.INCONCLUSIVE, gaps
    return Standing.CERTIFIED, tuple(_evidence(checks))


def _enumerated(target: LoadedModel, draft: Draft, drawing: Enumerated) -> Iterator[Enumerated]:
    """Yield what is enumerated: the draft in three ways of sampling, and a model that draws."""
    yield Enumerated(draft.name, target, draft, PLAIN, "temperature 1")
    yield Enumerated(draft.name, target, draft, PENALIZED, "frequency and presence penalty")
    described = "temperature 1.3, top-k, top-p, min-p, a bias, an end inside blocks"
    yield Enumerated(draft.name, target, draft, TRUNCATED, described, length=5, longest=3, end=2)
    if draft.name != drawing.name:
        described = "frequency and presence penalty"
        yield replace(drawing, params=PENALIZED, described=described)


def _enumerated_trees(own: Enumerated, drawing: Enumerated) -> Iterator[Enumerated]:
    """Yield what is enumerated with branches: the draft, and a model that draws them."""
    described = "a branch, frequency and presence penalty"
    for case in (own, drawing) if own.name != drawing.name else (own,):
        yield replace(case, params=PENALIZED, described=described, length=3, branches=1)


def _faults(checks: Checks) -> Iterator[str]:
    """Yield what speaks against the draft, or against the checks themselves."""
    yield from checks.equality.differences
    for case in checks.enumerations:
        if not case.equal:
            yield f"enumeration, {case.draft}, {case.params}: {case.fault or _apart(case)}"
    for control in checks.controls:
        if not control.caught:
            yield f"{control.bug} was planted and not noticed, so the enumeration proves nothing"
    for cache in checks.caches:
        if cache.differing:
            yield (
                f"the KV cache differs from a fresh run's in {len(cache.differing)} of "
                f"{cache.pages} pages ({cache.draft}, {cache.params})"
            )
    if (sampling := checks.sampling) is not None and not sampling.passed:
        yield (
            f"the share of {sampling.partition} is {sampling.bias:+.4f} off what the target says: "
            f"z is {sampling.z:.2f}, and {sampling.critical:.2f} is the most"
        )


def _apart(case: EnumerationCase) -> str:
    return f"probabilities differ by up to {case.distance:.2e}"


def _gaps(checks: Checks) -> Iterator[str]:
    """Yield what was not put to the test, so that nothing follows."""
    acceptance = checks.equality.acceptance
    if not any(case.acceptance.proposed for case in checks.equality.cases if not case.disturbed):
        yield "the draft proposed nothing on any prompt, so nothing of it was tested"
    if not acceptance.rejected:
        yield "no drafted token was rejected, so rollback was not tested"
    if not any(case.written_over for case in checks.caches):
        yield "no row of the KV cache was written over, so rollback was not tested"


def _evidence(checks: Checks) -> Iterator[str]:
    """Yield what was found."""
    equality = checks.equality
    acceptance = equality.acceptance
    yield (
        f"{equality.tokens:,} tokens in {len(equality.cases)} runs equal the plain ones, with "
        f"their log-probabilities, bit for bit; {acceptance.accepted:,} drafted tokens were "
        f"accepted and {acceptance.rejected:,} rejected"
    )
    worst = max(case.distance for case in checks.enumerations)
    paths = sum(case.paths for case in checks.enumerations)
    yield (
        f"{len(checks.enumerations)} whole distributions, over {paths:,} paths through the engine, "
        f"equal the target's to {worst:.1e}"
    )
    yield f"{len(checks.controls)} planted bugs were all noticed"
    yield (
        f"{sum(case.pages for case in checks.caches)} pages of the KV cache equal those of a fresh "
        f"run, where {sum(case.written_over for case in checks.caches)} rows were written over"
    )
    for case in checks.draft_caches:
        found = (
            "equal those of one pass over the same tokens"
            if not case.differing
            else f"differ in {len(case.differing)}, which costs accepted tokens and cannot change "
            "the output; please report it"
        )
        yield f"{case.pages} pages of {case.draft} {found}"
    if (sampling := checks.sampling) is not None:
        yield (
            f"{sampling.tokens:,} sampled tokens, {sampling.drafted:,} of them drafted: the share "
            f"of {sampling.partition} is {sampling.bias:+.4f} off what the target says (z "
            f"{sampling.z:.2f}); {sampling.detectable:.4f} would be noticed with a power of "
            f"{sampling.power:.0%}"
        )
