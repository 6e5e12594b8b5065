"""What is tuned, for how long and how fast; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UsageError
from fewbit.formats.spec import QuantTensor
from fewbit.program import Slot
from fewbit.records.tuning import TunedPoint, TuneRecord

MOST_STEPS = 1_000_000
"""Of a training: what each of them sees is chosen before the first."""


class Tuned(Enum):
    """What tuning may change; each includes the one before."""

    SCALES = "scales"
    """Scales, offsets, zero points, norm weights and biases; the codes stay."""
    ROUNDING = "rounding"
    """Codes too, each by at most one from where the solver put it."""
    WEIGHTS = "weights"
    """Codes freely: training with straight-through gradients on the same grid (QAT)."""


class Precision(Enum):
    """What linear layers and attention are computed in; norms and softmax are always float32."""

    BF16 = "bf16"
    F32 = "f32"


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """How a quantized model is tuned against its source.

    Raises:
        UsageError: a number out of range.
    """

    what: Tuned = Tuned.SCALES
    steps: int = 120
    batch: int = 4
    """Windows in one step."""
    rate: float = 1e-3
    """First relative step of scales, offsets and vectors where quantization has moved weights by a
    tenth, as in 4 bits; a model that has lost less is trained slower in proportion, and whatever is
    trained is trained slower behind a look that found no gain (see `pace`)."""
    code_rate: float = 1e-2
    """First step of latent codes, in units of the scale."""
    warmup: float = 0.05
    """Share of the steps over which rates rise from zero; after it they fall linearly to zero."""
    hidden: float = 0.0
    """Weight of the relative squared error of the final states beside the divergence."""
    check: int = 20
    """Steps between two looks at the held-out windows."""
    patience: int = 3
    """Looks without a lower divergence after which tuning ends."""
    seed: int = 0
    precision: Precision = Precision.BF16
    round_activations: bool = False
    """Round the inputs of layers with integer weights to int8 per 32, as the kernels do."""
    recompute: bool | None = None
    """Compute each layer again in the backward pass instead of keeping its values; None where
    memory asks for it."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "check", "patience"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.steps > MOST_STEPS:
            raise UsageError(f"steps is {self.steps}; there are at most {MOST_STEPS}.")
        for name in ("rate", "code_rate"):
            if not 0 < getattr(self, name) <= 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be in (0, 1].")
        if not 0 <= self.warmup < 1:
            raise UsageError(f"warmup is {self.warmup}; it is a share of the steps, in [0, 1).")
        if not self.hidden >= 0:
            raise UsageError(f"hidden is {self.hidden}; a weight of a loss is not negative.")


@dataclass(frozen=True, eq=False)
class TuneResult:
    """The tuned tensors of every slot, in the formats they came in, and how they came about."""

    tensors: Mapping[Slot, QuantTensor]
    record: TuneRecord


@dataclass(frozen=True)
class TuneProgress:
    """How far a tuning is."""

    stage: Literal["source", "tuning"]
    """Windows run through the source, or steps."""
    done: int
    total: int
    point: TunedPoint | None = None
    """What was found, where the held-out windows were just scored."""


Progress: TypeAlias = Callable[[TuneProgress], None]


def unwatched(progress: TuneProgress) -> None:
    """Tell nobody."""


@dataclass(frozen=True, eq=False)
class TuneText:
    """The tokens to tune on, and those that decide which values are kept.

    Raises:
        UsageError: a mask of another length than its window.
    """

    windows: Sequence[NDArray[np.int32]]
    """int32 [n] each."""
    masks: Sequence[NDArray[np.bool_]] | None = None
    """bool [n] for each window: the positions whose divergence counts; all where None."""
    held_out: Sequence[NDArray[np.int32]] = ()
    """Where there are none, every eighth of `windows` is taken out for it."""

    def __post_init__(self) -> None:
        masks = self.masks
        if masks is None:
            return
        if [len(mask) for mask in masks] != [len(window) for window in self.windows]:
            raise UsageError(
                f"The {len(masks)} masks do not fit the {len(self.windows)} windows; every window "
                "needs one of its length."
            )


@dataclass(frozen=True)
class Job:
    """Where a tuning keeps what lets it go on after a stop, and who is told how far it is."""

    folder: Path | None = None
    """For the source's final states and checkpoints; None for a temporary one."""
    key: str = ""
    """Whatever decides the outcome beside settings and text, such as hashes of the source and of
    the start. What another key left in the folder is written anew."""
    progress: Progress = unwatched
