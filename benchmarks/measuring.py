"""Candidates measured: all of them over the text together, then each as an evaluation does it.

The source is what takes longest, and it is the same for all. So every sequence is run once on the
source and on all candidates that lack it, and what comes of it is kept where an evaluation looks
for it. Each evaluation then finds its divergences there and adds what is left. It is kept whole,
so that a run that was stopped goes on, for the very fewbit that measured it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from planted import Candidate

from fewbit.errors import IdentityError, NumericalError
from fewbit.evaluate.arms import Arm, Arms, LocalParty, Role, Room, local_party
from fewbit.evaluate.axes import AxisOptions, axes_named
from fewbit.evaluate.evaluation import EvaluationSettings, evaluate, opened, working
from fewbit.evaluate.floor import floor_of
from fewbit.evaluate.language.axis import LanguageAxis
from fewbit.evaluate.language.lockstep import Lockstep, divergences
from fewbit.evaluate.language.score import Models
from fewbit.evaluate.subject import open_subject
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.weights import open_model
from fewbit.progress import Progress
from fewbit.records.base import from_json, to_json
from fewbit.records.evaluation import Evaluation
from fewbit.records.kept import fingerprint, program_digest
from fewbit.records.measurement import Finding
from fewbit.runtime.native import available_cores


@dataclass(frozen=True)
class Bench:
    """Where everything lies, and how much is done."""

    folder: Path
    source: Path
    options: AxisOptions
    axes: tuple[str, ...] | None = None
    """Instead of a candidate's own."""
    threads: int | None = None

    @property
    def work(self) -> Path:
        """Where outcomes are kept."""
        return self.folder / "work"

    @cached_property
    def made(self) -> Path:
        """Where all lies that is made and measured of this source, apart from any other's."""
        with open_model(self.source) as opened:
            folder = self.folder / f"of-{fingerprint(opened.checkpoint.stamps())[:8]}"
        folder.mkdir(exist_ok=True)
        return folder

    def kept(self, candidate: Candidate) -> Path:
        """Return where a candidate's evaluation is kept, or in a text why there is none."""
        decides = candidate.run, self.axes_of(candidate), self.options
        asked = fingerprint(program_digest(), *decides)
        return self.made / f"{candidate.name.replace(' ', '-')}-{asked[:8]}.json"

    def axes_of(self, candidate: Candidate) -> tuple[str, ...]:
        """Return the axes that are run on a candidate."""
        return self.axes or candidate.axes

    def settings(self, candidate: Candidate) -> EvaluationSettings:
        """Return how a candidate is run."""
        return EvaluationSettings(work=self.work, threads=self.threads, **candidate.run)

    def measured(self, candidate: Candidate, progress: Progress) -> Evaluation | str:
        """Return what was measured, kept from an earlier run, or why it was refused."""
        whole = self.kept(candidate)
        refusal = whole.with_suffix(".refused.txt")
        if whole.exists():
            return from_json(Evaluation, whole.read_bytes(), name=str(whole))
        if refusal.exists():
            return refusal.read_text()
        found = self._measured(candidate, progress)
        if isinstance(found, str):
            refusal.write_text(found)
        else:
            whole.write_bytes(to_json(found))
        return found

    def _measured(self, candidate: Candidate, progress: Progress) -> Evaluation | str:
        source = candidate.source(self.source, self.made)
        path = candidate.make(self.source, self.made)
        if candidate.findings is not None:
            return "; ".join(said(f) for f in candidate.findings(path) if not f.passed)
        axes = axes_named(self.axes_of(candidate), self.options)
        try:
            return evaluate(source, path, axes, self.settings(candidate), progress)
        except (IdentityError, NumericalError) as error:
            return f"{type(error).__name__.removesuffix('Error').lower()}: {error}"


def said(finding: Finding) -> str:
    """Return a finding in words."""
    return f"{finding.name}: {finding.found}"


def run_together(bench: Bench, candidates: Sequence[Candidate], progress: Progress) -> None:
    """Run the text once on the source, and beside it on all candidates that are not measured yet.

    Raises:
        NumericalError: a candidate gives values that are not finite.
    """
    missing = [c for c in candidates if c.reaches_the_text and not bench.kept(c).exists()]
    if not missing:
        return
    (axis,) = axes_named(("language",), bench.options)
    assert isinstance(axis, LanguageAxis)
    with working(bench.work), opened(bench.source) as source:
        passages = axis.passages_for(source)
        settings = EvaluationSettings(threads=bench.threads).run_settings()
        floor = floor_of(settings, planned_kernels(source.model, settings))
        one = local_party(source, settings)
        arms = _distinct(
            {"floor": local_party(source, floor.settings)}
            | {c.name: _party(bench, c) for c in missing}
        )
        kept = {
            name: divergences(
                Arms({Role.SOURCE: one, Role.CANDIDATE: party}, bench.work), Role.CANDIDATE
            )
            for name, party in arms.items()
        }
        with ExitStack() as stack:
            models = _Opened(one, arms, stack, Room(context=axis.window_tokens), {})
            lockstep = Lockstep("text", bench.threads or available_cores())
            lockstep.fill(kept, models, passages, progress)


def _party(bench: Bench, candidate: Candidate) -> LocalParty:
    subject = open_subject(candidate.make(bench.source, bench.made))
    with subject.model.checkpoint:
        return local_party(subject, bench.settings(candidate).candidate_settings())


def _distinct(arms: Mapping[str, LocalParty]) -> dict[str, LocalParty]:
    """Return arms without those that are another one: they have its outcomes."""
    by_fingerprint = {party.fingerprint: name for name, party in reversed(list(arms.items()))}
    return {name: arms[name] for name in arms if by_fingerprint[arms[name].fingerprint] == name}


@dataclass(frozen=True)
class _Opened:
    """Models that are loaded when they are first asked for."""

    source: LocalParty
    others: Mapping[str, LocalParty]
    stack: ExitStack
    room: Room
    arms: dict[str, Arm]

    def __call__(self, names: Sequence[str]) -> Models:
        others = {name: self._arm(name, self.others[name]).loaded.runner for name in names}
        return Models(self._arm("", self.source).loaded.runner, others)

    def _arm(self, name: str, party: LocalParty) -> Arm:
        if name not in self.arms:
            self.arms[name] = self.stack.enter_context(party.open(Role.CANDIDATE, self.room))
        return self.arms[name]
