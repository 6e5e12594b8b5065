"""What an axis of an evaluation is: a frozen spec that can be run on the arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fewbit.calibrate.text import Documents
from fewbit.evaluate.arms import Arms
from fewbit.progress import Progress
from fewbit.records.measurement import AxisResult, Measure


@dataclass(frozen=True)
class Brings:
    """What can come of an axis, known from its spec before it runs; a model may lack some."""

    slices: Mapping[str, Measure]
    """By name."""
    findings: tuple[str, ...] = ()


class Axis(Protocol):
    """One axis: a frozen dataclass of all that decides its figures."""

    @property
    def name(self) -> str:
        """As `language`; the first part of the names of its slices and findings."""
        ...

    @property
    def brings(self) -> Brings:
        """All slices and findings that there can be; a gate's names are held to it."""
        ...

    def run(self, arms: Arms, progress: Progress) -> AxisResult:
        """Measure every arm there is.

        What was asked of an arm is kept by `arms.kept(role, fingerprint(self.name, ...))` as it
        comes, so that a run that was stopped goes on, and so that a source serves many candidates.

        Raises:
            NumericalError: an arm gives values that are not finite.
            UnsupportedError: an arm cannot do what the axis asks of it.
        """
        ...


@runtime_checkable
class Reads(Protocol):
    """An axis that measures on texts; whoever is calibrated on one of them is refused."""

    @property
    def texts(self) -> tuple[Documents, ...]:
        """All of them."""
        ...
