"""The steps of a tuning, and the looks at held-out windows that decide what is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from fewbit.errors import NumericalError
from fewbit.formats.registry import is_integer
from fewbit.formats.spec import QuantTensor
from fewbit.program import Program, Slot
from fewbit.records.tuning import TunedPoint
from fewbit.runtime.torch_executor import TorchExecutor
from fewbit.runtime.torch_ops import ACTIVATION_RUN, RoundedActivations
from fewbit.tune import checkpoint
from fewbit.tune.adam import RelativeAdam, falling
from fewbit.tune.checkpoint import Standing
from fewbit.tune.codes import LatentCodes
from fewbit.tune.divergence import Outputs, divergence, row_divergences
from fewbit.tune.pace import SLOWED, pace
from fewbit.tune.settings import (
    Job,
    Precision,
    Tuned,
    TuneProgress,
    TuneSettings,
)
from fewbit.tune.states import Batch, Text
from fewbit.tune.student import Student

ARITHMETIC = {Precision.BF16: torch.bfloat16, Precision.F32: torch.float32}
"""The type of each precision."""

Teacher: TypeAlias = Callable[[Batch], Outputs]
"""Returns the source's final states on a batch, with its head."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """The text, cut into the batches of the steps and those that are held out."""

    text: Text
    steps: Sequence[Sequence[int]]
    """The windows of each step."""
    held_out: Sequence[Sequence[int]]


class Training:
    """A student, what is trained of it, and the best seen so far."""

    def __init__(
        self,
        program: Program,
        start: Mapping[Slot, QuantTensor],
        settings: TuneSettings,
        teacher: Teacher,
        *,
        recompute: bool,
    ) -> None:
        arithmetic = ARITHMETIC[settings.precision]
        self._settings, self._start, self._teacher = settings, start, teacher
        self.student = Student(start, arithmetic)
        self._rounded = _rounded(start) if settings.round_activations else frozenset()
        self._executor = TorchExecutor(
            program, self.student, arithmetic, rounded=self._rounded, recompute=recompute
        )
        self._adam = RelativeAdam(self.student.latents())
        self.pace = pace(self.student.matrices.values(), self.student.exact)
        self.codes = _latent_codes(self.student, settings.what, arithmetic)
        self.best: Mapping[Slot, QuantTensor] = start
        """The tensors with the least held-out divergence."""
        self.standing = Standing(step=0, kept=0, stale=0, trajectory=())

    @property
    def slowed(self) -> float:
        """What looks without gain have left of the rates."""
        return SLOWED**self.standing.setbacks

    def run(self, lesson: Lesson, job: Job, path: Path | None, key: str) -> None:
        """Take the steps that are left, looking at the held-out windows now and then.

        Raises:
            NumericalError: a divergence is not finite.
        """
        found = None if path is None else checkpoint.read(path, key, self._state(), self._start)
        if found is None:
            self._look(lesson, job)
        else:
            self.standing, best = found
            self.best = best or self._start
        while not self._ended(len(lesson.steps)):
            self.step(lesson.text.batch(lesson.steps[self.standing.step]))
            done = self.standing.step
            if done % self._settings.check and done != len(lesson.steps):
                job.progress(TuneProgress("tuning", done, len(lesson.steps)))
                continue
            self._look(lesson, job)
            if path is not None:
                kept = self.best if self.standing.kept else {}
                checkpoint.write(path, key, self.standing, self._state(), kept)

    def step(self, batch: Batch) -> float:
        """Take one step; return the loss on the batch before it."""
        settings, number = self._settings, self.standing.step
        loss = self._loss(batch)
        _require_finite(loss, f"after {number} steps of tuning")
        loss.backward()
        share = falling(number, settings.steps, settings.warmup) * self.slowed
        self._adam.step(number + 1, share * settings.rate * self.pace)
        for codes in self.codes.values():
            codes.step(number + 1, share * settings.code_rate)
        self.standing = self.standing.after_step()
        return float(loss.detach())

    def divergence(self, text: Text, batches: Sequence[Sequence[int]]) -> float:
        """Return the mean KL(source || student) over the counted positions of some windows."""
        total = counted = 0.0
        with torch.no_grad():
            for chosen in batches:
                batch = text.batch(chosen)
                rows = row_divergences(self._teacher(batch), self._outputs(batch))
                total += float(torch.dot(rows.double(), (batch.shares > 0).double()))
                counted += float((batch.shares > 0).sum())
        return total / counted

    def _loss(self, batch: Batch) -> Tensor:
        source, student = self._teacher(batch), self._outputs(batch)
        loss = divergence(source, student, batch.shares)
        if self._settings.hidden:
            away = (student.states.float() - source.states.float()).square().sum(-1)
            apart = away / source.states.float().square().sum(-1).clamp_(min=1e-12)
            loss = loss + self._settings.hidden * torch.dot(apart, batch.shares)
        return loss

    def _outputs(self, batch: Batch) -> Outputs:
        states = self._executor.states(batch.tokens).flatten(0, 1)
        head = self._executor.head
        if head.slot in self._rounded:
            states = RoundedActivations.apply(states)
        return Outputs(states, self.student.matrix(head.slot), head.cap)

    def _look(self, lesson: Lesson, job: Job) -> None:
        found = self.divergence(lesson.text, lesson.held_out)
        _require_finite(torch.tensor(found), "on the held-out windows")
        better = not self.standing.trajectory or found < self.standing.least
        self.standing = self.standing.after_look(found, better=better)
        if better and self.standing.step:
            self.best = self.student.exported()
        point = TunedPoint(step=self.standing.step, divergence=found)
        job.progress(TuneProgress("tuning", point.step, len(lesson.steps), point))

    def _ended(self, steps: int) -> bool:
        return self.standing.step == steps or self.standing.stale >= self._settings.patience

    def _state(self) -> dict[str, Tensor]:
        """Return everything that changes from step to step, by name."""
        state = {f"latent/{name}": part.value for name, part in self.student.latents()}
        state |= {f"first/{name}": part for name, part in self._adam.first.items()}
        state |= {f"second/{name}": part for name, part in self._adam.second.items()}
        for slot, codes in self.codes.items():
            state |= {f"codes/{slot}/{name}": part for name, part in codes.state().items()}
        return {name: part.detach() for name, part in state.items()}


def _latent_codes(
    student: Student, what: Tuned, arithmetic: torch.dtype
) -> dict[Slot, LatentCodes]:
    if what is Tuned.SCALES:
        return {}
    reach = 1 if what is Tuned.ROUNDING else None
    return {
        slot: LatentCodes(matrix, reach=reach, gradients=arithmetic)
        for slot, matrix in student.matrices.items()
    }


def _rounded(start: Mapping[Slot, QuantTensor]) -> frozenset[Slot]:
    """Return the matrices whose kernels round their inputs to int8 per 32."""
    return frozenset(
        slot
        for slot, tensor in start.items()
        if is_integer(tensor.spec) and tensor.shape[1] % ACTIVATION_RUN == 0
    )


def _require_finite(value: Tensor, where: str) -> None:
    if not bool(torch.isfinite(value.detach())):
        raise NumericalError(
            f"The divergence is {float(value.detach())} {where}; a weight is out of range, or the "
            "rate is too high: lower it."
        )
