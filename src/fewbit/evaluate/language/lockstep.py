"""Sequences compared on all arms in lockstep, and kept as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields

import numpy as np

from fewbit.evaluate.arms import Arm, Arms, Role, Room
from fewbit.evaluate.kept import Kept, fingerprint
from fewbit.evaluate.language.divergence import DTYPES, Comparison, concatenate
from fewbit.evaluate.language.passages import Passage
from fewbit.evaluate.language.score import Models, Run, Workers, score
from fewbit.progress import Progress
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

    def models(self, roles: Sequence[Role]) -> Models:
        """Return the source and arms of these roles, ready to run."""
        others = {role.value: self.arm(role).loaded.runner for role in roles}
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
        others: list[Role] = [role for role in arms.roles if role is not Role.SOURCE]
        kept = {role: _kept(arms, role) for role in others}
        known = {role: kept[role].names() for role in kept}
        asked = [(p, [role for role in kept if p.name not in known[role]]) for p in passages]
        missing = [(passage, roles) for passage, roles in asked if roles]
        with ThreadPoolExecutor(self.threads) as pool:
            workers = Workers(pool, self.threads)
            for done, (passage, roles) in enumerate(missing):
                progress(self.axis, done, len(missing))
                run = Run(passage.document.name, passage.tokens, passage.first)
                for name, found in score(opened.models(roles), run, workers).items():
                    kept[Role(name)].add(passage.name, _record(found))
        if missing:
            progress(self.axis, len(missing), len(missing))
        return {role: _read(kept[role], passages) for role in kept}


def _kept(arms: Arms, role: Role) -> Kept:
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
