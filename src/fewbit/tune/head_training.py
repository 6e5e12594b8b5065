"""The training of a draft head: the target runs natively, the head in torch beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fewbit.errors import NumericalError
from fewbit.formats.registry import decode
from fewbit.model.head import HeadConfig
from fewbit.model.runner import Runner
from fewbit.program import Slot
from fewbit.progress import Progress
from fewbit.tune.adam import falling
from fewbit.tune.head import Agreement, HeadSettings, TrainedHead, head_config
from fewbit.tune.head_student import HeadStudent, Memory

_LAYER = "layers.0."
_SMALL = 0.02
"""Deviation of what begins at random."""

_BLOCK = 128
"""Rows of the target's logits that are in memory at once."""


def run(  # noqa: PLR0913, PLR0917
    target: Runner,
    kept: NDArray[np.int32],
    windows: Sequence[NDArray[np.int32]],
    held_out: Sequence[NDArray[np.int32]],
    settings: HeadSettings,
    progress: Progress,
) -> TrainedHead:
    """Train a head; arguments and errors are those of `tune.head.train_head`."""
    config = head_config(target.config, len(kept))
    config = replace(config, after=config.taps(target.config.layers))
    student = HeadStudent(config, first_weights(config, target, kept, settings.seed))
    teacher = _Teacher(target, kept)
    lessons = [teacher.lesson(window) for window in held_out]
    before = _agreement(student, lessons, settings.unrolled)
    optimizer = torch.optim.Adam(student.parameters.values(), betas=(0.9, 0.95))
    for step, window in enumerate(_in_turn(windows, settings)):
        rate = settings.rate * falling(step, settings.steps, settings.warmup)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = _loss(student, teacher.lesson(window), settings)
        if not torch.isfinite(loss):
            raise NumericalError(
                f"The loss of step {step + 1} is {float(loss)}; train with a lower rate."
            )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters.values(), 1.0)
        optimizer.step()
        progress(f"training, loss {float(loss.detach()):.2f}", step + 1, settings.steps)
    after = _agreement(student, lessons, settings.unrolled)
    weights = {name: value.detach().numpy() for name, value in student.parameters.items()}
    return TrainedHead(config, weights, before, after)


def first_weights(
    config: HeadConfig, target: Runner, kept: NDArray[np.int32], seed: int
) -> dict[str, NDArray[np.float32]]:
    """Return a head that looks on where the target's last layers do.

    It fuses by taking the deepest state, has the target's last layer on the side of the states,
    and its head; the side of the token begins next to nothing.
    """
    rng, layer, last = np.random.default_rng(seed), config.layer, target.config.layers - 1
    hidden = layer.hidden

    def small(*shape: int) -> NDArray[np.float32]:
        return (_SMALL * rng.standard_normal(shape)).astype(np.float32)

    def theirs(slot: Slot, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return the target's tensor where it has one of that shape."""
        if slot not in target.source.slots:
            return small(*shape) if len(shape) > 1 else np.ones(shape, np.float32)
        found = decode(target.source.read(slot))
        return (found if len(shape) > 1 else found[0]).reshape(shape).astype(np.float32)

    fuse = small(hidden, 3 * config.target_hidden)
    fuse[:, 2 * config.target_hidden :] += np.eye(hidden, config.target_hidden, dtype=np.float32)
    head = "embed.weight" if target.config.tied else "head.weight"
    weights = {
        "fc.weight": fuse,
        "norm.weight": theirs("final_norm.weight", (hidden,)),
        "lm_head.weight": decode(target.source.read(head).take_rows(kept.astype(np.intp))),
        f"{_LAYER}input_layernorm.weight": np.ones(hidden, np.float32),
        f"{_LAYER}hidden_norm.weight": theirs(f"layers.{last}.attn_norm.weight", (hidden,)),
        f"{_LAYER}post_attention_layernorm.weight": theirs(
            f"layers.{last}.mlp_norm.weight", (hidden,)
        ),
    }
    for site, rows in (("q", layer.query_width), ("k", layer.key_width), ("v", layer.key_width)):
        own = theirs(f"layers.{last}.{site}.weight", (rows, hidden))
        weights[f"{_LAYER}self_attn.{site}_proj.weight"] = np.hstack([small(rows, hidden), own])
    for name, slot, shape in (
        ("self_attn.o_proj", "o", (hidden, layer.query_width)),
        ("mlp.gate_proj", "gate", (layer.intermediate, hidden)),
        ("mlp.up_proj", "up", (layer.intermediate, hidden)),
        ("mlp.down_proj", "down", (hidden, layer.intermediate)),
    ):
        weights[f"{_LAYER}{name}.weight"] = theirs(f"layers.{last}.{slot}.weight", shape)
    return weights


@dataclass(frozen=True, eq=False)
class _Lesson:
    """A window, as the head is shown it."""

    embedded: Tensor
    """[tokens, hidden]."""
    states: Tensor
    """[tokens, 3 * target hidden]."""
    says: Tensor
    """[tokens, kept]: the target's logits of the tokens that the head has."""
    likeliest: Tensor
    """int64 [tokens]: the head's number of the target's likeliest token; -1 where it has it not."""


class _Teacher:
    """Runs the target over windows."""

    def __init__(self, target: Runner, kept: NDArray[np.int32]) -> None:
        self._target = target
        self._kept = kept

    def lesson(self, window: NDArray[np.int32]) -> _Lesson:
        """Return what the target makes of a window."""
        states, says, likeliest = [], [], []
        for logits in self._target.score(window, block=_BLOCK):
            states.append(self._target.states(np.arange(len(logits), dtype=np.int32)))
            says.append(logits[:, self._kept])
            likeliest.append(logits.argmax(axis=1))
        found = np.concatenate(likeliest)
        place = np.searchsorted(self._kept, found).clip(max=len(self._kept) - 1)
        number = np.where(self._kept[place] == found, place, -1)
        table = self._target.source.read("embed.weight")
        embedded = decode(table.take_rows(window.astype(np.intp)))
        return _Lesson(
            torch.from_numpy(embedded),
            torch.from_numpy(np.concatenate(states)),
            torch.from_numpy(np.concatenate(says)),
            torch.from_numpy(number.astype(np.int64)),
        )


def _in_turn(
    windows: Sequence[NDArray[np.int32]], settings: HeadSettings
) -> Iterator[NDArray[np.int32]]:
    """Yield a window for each step, each epoch in another order."""
    rng = np.random.default_rng(settings.seed)
    order: list[int] = []
    for _ in range(settings.steps):
        order = order or rng.permutation(len(windows)).tolist()
        yield windows[order.pop()]


def _unrolled(student: HeadStudent, lesson: _Lesson, steps: int) -> Iterator[tuple[int, Tensor]]:
    """Yield, for each block position, which row of the target it is judged by first, and logits."""
    memory, hidden = Memory(), student.fuse(lesson.states)
    for step in range(steps):
        rows = len(lesson.embedded) - 1 - step
        logits, hidden = student.advance(lesson.embedded[step + 1 :], hidden[:rows], memory)
        yield step + 1, logits


def _loss(student: HeadStudent, lesson: _Lesson, settings: HeadSettings) -> Tensor:
    total = torch.zeros(())
    for first, logits in _unrolled(student, lesson, settings.unrolled):
        says = torch.softmax(lesson.says[first:], dim=-1)
        judged = -(says * functional.log_softmax(logits, dim=-1)).sum(-1).mean()
        total = total + settings.decay ** (first - 1) * judged
    return total


@torch.no_grad()
def _agreement(student: HeadStudent, lessons: Sequence[_Lesson], steps: int) -> Agreement:
    hits, rows = [0] * steps, [0] * steps
    for lesson in lessons:
        for first, logits in _unrolled(student, lesson, steps):
            right = logits.argmax(-1) == lesson.likeliest[first:]
            hits[first - 1] += int(right.sum())
            rows[first - 1] += len(right)
    return tuple(hit / max(count, 1) for hit, count in zip(hits, rows, strict=True))
