"""What is asked for the lengths of drafts of a step, and what is answered; kept by sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from fewbit.speculate.survival import SequenceSurvival
from fewbit.speculate.tree_shape import TreeShape


@dataclass(frozen=True)
class LengthChange:
    """From which generated token on a sequence's drafts had which length, and why."""

    token: int
    length: int
    reason: str


@dataclass(eq=False)
class SequenceLength:
    """What the controller keeps of one sequence; by part of the draft, where it asks several."""

    survivals: tuple[SequenceSurvival, ...]
    lengths: list[int]
    trials: int = 0
    changes: list[LengthChange] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    """Parts that have nothing more for it."""

    def add(self, part: int, judged: int, accepted: int) -> None:
        """Add a block that a part drafted. What the others had shown becomes old meanwhile."""
        for i, survival in enumerate(self.survivals):
            if i == part:
                survival.add(judged, accepted)
            else:
                survival.fade()

    def end(self, part: int, generated: int, reason: str) -> None:
        """Note that a part has nothing more for it."""
        self.ended.add(part)
        self.changes.append(LengthChange(generated, 0, reason))


@dataclass(frozen=True)
class Ask:
    """A sequence that may have a draft in this step."""

    state: SequenceLength
    longest: int
    """Tokens that could be of use, the engine's bound included."""
    position: int
    """Tokens so far."""
    generated: int
    """Of them, those that were generated."""
    left: int
    """Tokens that may still come."""
    unread: int
    """Tokens that the draft would have to read first."""
    part: int = 0
    """Which part of the draft would be asked."""
    branches: int = 0
    """Branches that its draft may have at most."""
    reach: int = 0
    """Tokens of a branch at most."""

    @property
    def survival(self) -> SequenceSurvival:
        """That of the sequence's drafts by this part."""
        return self.state.survivals[self.part]


@dataclass(frozen=True)
class Plan:
    """A step's draft lengths, in the order of the asks."""

    lengths: tuple[int, ...]
    trial: bool = False
    """They are not expected to pay; the workload may have changed."""
    shapes: tuple[TreeShape, ...] = ()
    """The branches of each; empty where none has any."""
