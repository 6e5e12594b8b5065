"""Sequences compared on all arms in lockstep, and kept as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields

import numpy as np

from fewbit.evaluate.arms import Arm, Arms, Role, Room
from fewbit.evaluate.language.divergence import DTYPES, Comparison, concatenate
from fewbit.evaluate.language.passages import Passage
from fewbit.evaluate.language.score import Models, Run, Workers, score
from fewbit.progress import Progress
from fewbit.records.kept import Kept, fingerprint
from fewbit.records.language import PassageScores


@dataclass(frozen=True)
class OpenArms:
    """Arms that are opened when they are first needed, and stay open as long as `stack`."""

    arms: Arms
    stack: ExitStack
    room: Room
    _opened: dict[Role, Arm] = field(default_factory=dict)

    def arm(self, role: Role) -> Arm:
        """Return an arm, open; raises as `Arms.open`."""
        if role not in self._opened:
            self._opened[role] = self.stack.enter_context(self.arms.open(role, self.room))
        return self._opened[role]

    def models(self, names: Sequence[str]) -> Models:
        """Return the source and the arms of these roles, by their values, ready to run."""
        others = {name: self.arm(Role(name)).loaded.runner for name in names}
        return Models(self.arm(Role.SOURCE).loaded.runner, others)


@dataclass(frozen=True)
class Lockstep:
    """How sequences are compared."""

    axis: str
    """Named in progress."""
    threads: int
    """Of the comparison."""

    def compare(
        self, opened: OpenArms, passages: Sequence[Passage], progress: Progress
    ) -> dict[Role, Comparison]:
        """Return what was found of each arm but the source, sequence after sequence.

        What is kept is not run again, and an arm that nothing is asked of stays closed: the floor
        of a source serves all its candidates.

        Raises:
            NumericalError: a logit is NaN or infinite; names arm, document and position.
        """
        arms = opened.arms
        kept = {r.value: divergences(arms, r) for r in arms.roles if r is not Role.SOURCE}
        self.fill(kept, opened.models, passages, progress)
        return {Role(name): _read(found, passages) for name, found in kept.items()}

    def fill(
        self,
        kept: Mapping[str, Kept],
        models: Callable[[Sequence[str]], Models],
        passages: Sequence[Passage],
        progress: Progress,
    ) -> None:
        """Run what is not kept yet, each sequence once on the source and on all that lack it.

        Args:
            kept: what each of the others has, by its name.
            models: returns the source and the others of these names, ready to run.
            passages: the sequences.
            progress: told of each sequence.

        Raises:
            NumericalError: a logit is NaN or infinite; names model, document and position.
        """
        known = {name: found.names() for name, found in kept.items()}
        asked = [(p, [name for name in kept if p.name not in known[name]]) for p in passages]
        missing = [(passage, names) for passage, names in asked if names]
        with ThreadPoolExecutor(self.threads) as pool:
            workers = Workers(pool, self.threads)
            for done, (passage, names) in enumerate(missing):
                progress(self.axis, done, len(missing))
                run = Run(passage.document.name, passage.tokens, passage.first)
                for name, found in score(models(names), run, workers).items():
                    kept[name].add(passage.name, _record(found))
        if missing:
            progress(self.axis, len(missing), len(missing))


def divergences(arms: Arms, role: Role) -> Kept:
    """Return what is kept of an arm beside the source, sequence by sequence."""
    return arms.kept(role, fingerprint("divergence", arms.fingerprint(Role.SOURCE)))


def _record(found: Comparison) -> PassageScores:
    return PassageScores(**{f.name: getattr(found, f.name).tobytes() for f in fields(Comparison)})


def _read(kept: Kept, passages: Sequence[Passage]) -> Comparison:
    records: Mapping[str, PassageScores] = kept.read(PassageScores)
    return concatenate([_arrays(records[passage.name]) for passage in passages])


def _arrays(record: PassageScores) -> Comparison:
    names = [f.name for f in fields(Comparison)]
    return Comparison(
        *(np.frombuffer(getattr(record, n), DTYPES.get(n, np.float64)) for n in names)
    )
