"""A deployed model against its exact source, from a path and a URL to a verdict.

What a server does not show is in the identity as not checked. Its weights cannot be scanned. There
is no floor: what "the same" costs on the server's kernels cannot be asked of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from fewbit.errors import UsageError
from fewbit.evaluate.arms import Arms, Party, Role, local_party
from fewbit.evaluate.axes import AXES, AxisOptions, axes_named
from fewbit.evaluate.axis import Axis
from fewbit.evaluate.conditions import conditions
from fewbit.evaluate.endpoint.answerer import EndpointParty
from fewbit.evaluate.endpoint.axis import AXIS, EndpointAxis
from fewbit.evaluate.endpoint.client import Client
from fewbit.evaluate.endpoint.facts import probe_identity
from fewbit.evaluate.evaluation import EvaluationSettings, arm_facts, opened, working
from fewbit.evaluate.gating.declared import require_known
from fewbit.evaluate.gating.gate import judge, waived
from fewbit.evaluate.identity import Subject
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.facts import model_facts
from fewbit.progress import Progress, unwatched
from fewbit.records.endpoint import EndpointFacts
from fewbit.records.evaluation import ArmFacts, Evaluation, Identity
from fewbit.records.kept import file_of
from fewbit.records.model import ModelFacts
from fewbit.runtime.native import threads_of

ASKED = (AXIS, "tasks", "safety", "tools")
"""Axes that want nothing but answers; all of them where none are named."""


def endpoint_axes(names: Sequence[str], options: AxisOptions) -> tuple[Axis, ...]:
    """Return the axes of these names that a server can be measured on.

    Raises:
        UsageError: a name is none of them.
        BadFileError, MissingError: a suite cannot be read.
    """
    wanted = list(ASKED) if not names or "all" in names else list(names)
    for name in wanted:
        if name not in ASKED:
            raise UsageError(
                f"Axis '{name}' cannot be measured on a server; there are {', '.join(ASKED)}. "
                "For the others give the file that the server runs."
            )
    own: tuple[Axis, ...] = (EndpointAxis(),) if AXIS in wanted else ()
    others = [name for name in wanted if name in AXES]
    return (*own, *axes_named(others, options)) if others else own


def evaluate_endpoint(
    source: Path,
    party: EndpointParty,
    axes: Sequence[Axis],
    settings: EvaluationSettings,
    progress: Progress = unwatched,
) -> Evaluation:
    """Measure a deployed model against its exact source and judge it.

    Raises:
        IdentityError: what the server shows is not the source's.
        RequestError: the server cannot be reached, or refuses.
        UsageError: the gate names what the axes cannot have.
        FewbitError: as `evaluate`.
    """
    started = time.perf_counter()
    require_known([axis.brings for axis in axes], settings.gate)
    with working(settings.work), opened(source) as subject:
        identity = _identity(party, subject)
        run, earlier = settings.run_settings(), _kept_earlier(settings.work, party)
        parties: dict[Role, Party] = {
            Role.SOURCE: local_party(subject, run),
            Role.CANDIDATE: party,
        }
        arms = Arms(parties, settings.work)
        results = waived([axis.run(arms, progress) for axis in axes], settings.gate)
        judgements, verdict = judge(results, settings.gate)
        kernels = planned_kernels(subject.model, run)
        threads = threads_of(settings.threads)
        return Evaluation(
            source=model_facts(subject.model),
            candidate=_facts(party.facts),
            identity=identity,
            arms=_arms(party.facts, subject),
            axes=results,
            gate=settings.gate,
            judgements=judgements,
            verdict=verdict,
            tensors=(),
            source_kernels=kernels,
            candidate_kernels=(),
            conditions=conditions(kernels, threads, settings.executor),
            notes=(
                f"The candidate ran on {party.facts.server} at {party.facts.url}; conditions and "
                "kernels are those of the source, which ran here.",
                *earlier,
            ),
            seconds=time.perf_counter() - started,
        )


def _kept_earlier(work: Path | None, party: EndpointParty) -> tuple[str, ...]:
    """Return a sentence where an earlier run kept what such a server answered."""
    kept = file_of(work, party.fingerprint, "")
    if kept is None or not kept.parent.is_dir():
        return ()
    return (
        f"What an earlier run kept of this server's answers in {kept.parent} was not asked again. "
        "A server does not show its weights: if other ones were loaded under the same name since "
        "then, remove that folder and measure again.",
    )


def _identity(party: EndpointParty, source: Subject) -> Identity:
    client = Client(party.address)
    try:
        return probe_identity(client, party.facts, source)
    finally:
        client.close()


def _facts(facts: EndpointFacts) -> ModelFacts:
    return ModelFacts(
        name=facts.model,
        path=facts.url,
        architecture="unknown",
        parameters=0,
        bytes=facts.bytes or 0,
        bits_per_weight=0.0,
        formats=(),
        quantized=True,
    )


def _arms(facts: EndpointFacts, source: Subject) -> tuple[ArmFacts, ...]:
    return (
        arm_facts(Role.SOURCE, "as the model says", source),
        ArmFacts(
            role=Role.CANDIDATE.value,
            run=f"by {facts.server} at {facts.url}",
            begins="as the server begins a text",
            template=facts.template,
        ),
    )
