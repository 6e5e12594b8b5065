"""Choosing every matrix's format for a number of bytes, from what its rounding does to the output.

Predicted divergences of single matrices are added up, and the sum is least under the budget
(`knapsack`). Matrices that the target runtime fuses get one format. Then the choice has to prove
itself: it and the best uniform choice that fits (one format for all layers, one for each table)
are both built and run on held-out text, and the better one is returned.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.calibration import window_digest
from fewbit.errors import UnsupportedError, UsageError
from fewbit.formats.registry import ENCODABLE, encoded_bytes, parse_format
from fewbit.formats.spec import QuantTensor
from fewbit.model.weights import ModelSource
from fewbit.program import OUTSIDE, Slot
from fewbit.progress import Progress, unwatched
from fewbit.quantization.choices import (
    FOLDER_FORMATS,
    GGUF_FORMATS,
    Group,
    described,
    smallest,
    total_bytes,
    total_cost,
    uniform_choices,
)
from fewbit.quantization.knapsack import Option, choose_options
from fewbit.quantization.planned import Container, QuantizationPlan
from fewbit.quantization.planning import plan
from fewbit.quantization.probing import ProbeModel
from fewbit.quantization.sensitivity import (
    PROBE_GROUP,
    Probes,
    Sensitivity,
    Unit,
    format_errors,
    measure,
    probe_of,
    probed_layers,
    smooth,
    units,
    unprobed,
)
from fewbit.quantization.target import Budget, Target, budget_of
from fewbit.quantization.trial import Builder, many_weights
from fewbit.records.allocation import AllocationRecord, MeasuredChoice, SlotSensitivity
from fewbit.records.figures import size
from fewbit.records.recipe import KEEP, Recipe, Rule
from fewbit.runtime.native import threads_of


@dataclass(frozen=True, kw_only=True)
class AllocationSettings:
    """How much text is run, and what there is to choose from."""

    probe_windows: int = 6
    """Of the windows, the first so many measure single matrices, the others whole choices."""
    probe_layers: int = 10
    """How many layers of a large model are probed, and the second one."""
    formats: tuple[str, ...] = ()
    """Names to choose from; empty for all that the container takes."""
    threads: int | None = None


DEFAULT = AllocationSettings()


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be made, in how many bytes."""

    source: ModelSource
    base: Recipe
    """Its method, transforms and tuning are taken over, and how its first rule rounds activations;
    its formats are not."""
    container: Container
    target: Target


def allocate(
    wish: Wish,
    windows: Sequence[NDArray[np.int32]],
    build: Builder,
    settings: AllocationSettings = DEFAULT,
    progress: Progress = unwatched,
) -> tuple[Recipe, AllocationRecord]:
    """Return the recipe whose artefact diverges least from the source in the bytes of a target.

    Args:
        wish: the model and the target.
        windows: token ids, int32 [tokens] each, that calibration has not seen; more than
            `settings.probe_windows`.
        build: makes the tensors of the two choices that are compared.
        settings: how it is done.
        progress: told what goes on.

    Raises:
        UsageError: the target is too small for the smallest formats, or there are too few windows.
        KernelError, NumericalError, UnsupportedError: as `ProbeModel`, `plan` and `build`.
    """
    if len(wish.base.methods) > 1:
        raise UsageError(
            f"The recipe '{wish.base.name}' has methods of single rules, and formats for a target "
            "make rules of their own; give a recipe with one method."
        )
    if len(windows) <= settings.probe_windows:
        raise UsageError(
            f"Allocation has {len(windows)} windows of text and needs more than "
            f"{settings.probe_windows}, of which some measure matrices and others the result; give "
            "more text."
        )
    work = _Work(wish, ProbeModel(wish.source, windows, settings.threads), settings, progress)
    measured = work.sensitivities(build)
    found = _Found(work, measured, work.groups(measured))
    compared = found.measured(found.best, build), found.measured(found.uniform, build)
    better = min(compared, key=lambda one: one.measured.divergence)
    return found.recipe(better.choice), found.record(compared, windows, build.method)


@dataclass(frozen=True)
class _Work:
    """Measures matrices and reckons what formats would bring."""

    wish: Wish
    model: ProbeModel
    settings: AllocationSettings
    progress: Progress

    def sensitivities(self, build: Builder) -> tuple[Sensitivity, ...]:
        """Probe every matrix that can be chosen for, and smooth what was measured."""
        known = {unit.site for unit in self.chosen if unit.layer in self.layers}
        probed = [u for u in self.chosen if u.layer in self.layers or u.site not in known]
        solved = {} if self.together else self._solved(probed, build)
        found = measure(
            self.wish.source,
            self.model,
            Probes(probed, self.settings.probe_windows, solved, self.probe),
            lambda done: self.progress("measuring sensitivity", done, len(probed)),
        )
        others = (unit for unit in self.chosen if unit not in probed)
        reckoned = (unprobed(self.wish.source, self.model, unit, self.probe) for unit in others)
        return smooth((*found, *reckoned))

    @cached_property
    def chosen(self) -> tuple[Unit, ...]:
        """What there is a format for that makes it smaller."""
        every = units(self.model.program, together=self.together)
        return tuple(unit for unit in every if all(map(self._fitting, unit.slots)))

    @cached_property
    def probe(self) -> str:
        """The format that matrices are probed in."""
        return probe_of(self.wish.source, [slot for unit in self.chosen for slot in unit.slots])

    def _solved(self, probed: Sequence[Unit], build: Builder) -> Mapping[Slot, QuantTensor]:
        """Return the matrices in the probe format as the recipe's method makes them.

        Those that are stored in as few bytes already are left to rounding.
        """
        form, source = parse_format(self.probe), self.wish.source
        slots = [slot for unit in probed for slot in unit.slots]
        infos = [(slot, source.info(slot)) for slot in slots]
        larger = [s for s, i in infos if encoded_bytes(form, i.matrix_shape) < i.nbytes]
        if not larger:
            return {}
        rules = tuple(Rule(match=slot, format=self.probe) for slot in larger)
        plain = msgspec.structs.replace(self.wish.base, rules=rules, transforms=(), tune=None)
        planned = plan(self.wish.source, plain, Container.FEWBIT)
        return build.make(planned, self.model.squares)

    def groups(self, measured: Sequence[Sensitivity]) -> tuple[Group, ...]:
        """Return what is chosen together, with options of each."""
        of = {slot: one.of(slot) for one in measured for slot in one.unit.slots}
        together: dict[object, list[Slot]] = defaultdict(list)
        for slot, key in self._keys().items():
            if slot in of:
                together[key].append(slot)
        found: list[Group] = []
        with ThreadPoolExecutor(threads_of(self.settings.threads)) as pool:
            for group in pool.map(lambda slots: self._group(slots, of), together.values()):
                found.append(group)
                self.progress("reckoning formats", len(found), len(together))
        return tuple(found)

    @property
    def layers(self) -> frozenset[int]:
        """The layers that are probed, tables outside of them included."""
        layers = self.wish.source.config.layers
        most = self.settings.probe_layers if self.together else layers
        return probed_layers(layers, most) | {OUTSIDE}

    @property
    def together(self) -> bool:
        """Whether matrices that read the same input are probed together."""
        return many_weights(self.wish.source)

    def _keys(self) -> dict[Slot, object]:
        """Return what each matrix shares its format by: the stored tensor, or fused layers.

        What was probed together is not told apart either: a unit's error says nothing of how much
        of its divergence is q's and how much v's.
        """
        every = units(self.model.program, together=True)
        if self.wish.container is Container.FEWBIT or self.together:
            return {slot: unit.slots for unit in every for slot in unit.slots}
        stored = self.wish.source.slots
        return {slot: stored[slot].name for unit in every for slot in unit.slots}

    def _fitting(self, slot: Slot) -> list[str]:
        """Return the formats that divide a matrix's rows and make it smaller."""
        info = self.wish.source.info(slot)
        if slot.endswith(".router.weight") or info.shape[-1] % PROBE_GROUP:
            return []
        found = []
        for name in self._names():
            with contextlib.suppress(UsageError):
                if encoded_bytes(parse_format(name), info.matrix_shape) < info.nbytes:
                    found.append(name)
        return found

    def _names(self) -> tuple[str, ...]:
        if self.settings.formats:
            return self.settings.formats
        if self.wish.container is Container.FEWBIT:
            return FOLDER_FORMATS
        return tuple(name for name in GGUF_FORMATS if name in ENCODABLE)

    def _group(self, slots: Sequence[Slot], of: Mapping[Slot, float]) -> Group:
        source = self.wish.source
        names = [n for n in self._fitting(slots[0]) if all(n in self._fitting(s) for s in slots)]
        forms = [parse_format(name) for name in names]
        costs = np.zeros(len(names))
        needed = np.zeros(len(names), np.int64)
        for slot in slots:
            squares = self.model.squares.get(slot)
            errors = format_errors(source, slot, forms, squares, self.probe)
            costs += of[slot] * np.array(errors)
            shape = source.info(slot).matrix_shape
            needed += np.array([encoded_bytes(form, shape) for form in forms])
        options = [Option(int(b), float(c)) for b, c in zip(needed, costs, strict=True)]
        if self.wish.base.transforms:  # what they touch is not kept as it is stored
            return Group(tuple(slots), tuple(names), tuple(options))
        kept = sum(source.info(slot).nbytes for slot in slots)
        return Group(tuple(slots), (*names, KEEP), (*options, Option(kept, 0.0)))


@dataclass(frozen=True)
class _Compared:
    """A choice, built and measured."""

    choice: tuple[int, ...]
    measured: MeasuredChoice


@dataclass(frozen=True)
class _Found:
    """Chooses among what was measured."""

    work: _Work
    sensitivities: tuple[Sensitivity, ...]
    groups: tuple[Group, ...]

    @cached_property
    def budget(self) -> Budget:
        """The target as bytes of tensors."""
        wish = self.work.wish
        return budget_of(wish.target, self.plan(smallest(self.groups)))

    @cached_property
    def room(self) -> int:
        """The bytes that the groups may take: all but those of what is not chosen for."""
        least = smallest(self.groups)
        planned = self.plan(least)
        added = {t.slot for t in planned.tensors if t.slot} - self.work.wish.source.slots.keys()
        if added:
            raise UnsupportedError(
                f"The transforms {', '.join(self.work.wish.base.transforms)} make a matrix of its "
                f"own of {', '.join(sorted(added))}, which a target size cannot choose for; leave "
                "them out, or name formats."
            )
        return self.budget.tensors - (planned.promised_bytes - total_bytes(self.groups, least))

    @cached_property
    def best(self) -> tuple[int, ...]:
        """The choice of least predicted divergence in the budget."""
        choice = choose_options([group.options for group in self.groups], self.room)
        if choice is None:
            least = self.plan(smallest(self.groups)).promised_bytes + self.budget.overhead
            raise UsageError(
                f"The target {self.work.wish.target.text} is {size(self.budget.target)}, and with "
                f"the smallest formats to choose from the model takes {size(least)}; ask for more."
            )
        return choice

    @property
    def uniform(self) -> tuple[int, ...]:
        """The uniform choice of least predicted divergence in the budget.

        Where no uniform choice fits, it is the best one again.
        """
        choices = uniform_choices(self.groups)
        fitting = [choice for choice in choices if total_bytes(self.groups, choice) <= self.room]
        return min(fitting, key=lambda choice: total_cost(self.groups, choice), default=self.best)

    def measured(self, choice: tuple[int, ...], build: Builder) -> _Compared:
        """Build a choice and run it on the held-out windows."""
        what = described(self.groups, choice)
        self.work.progress(f"measuring {what}", 0, 1)
        plain = msgspec.structs.replace(self.recipe(choice), transforms=(), tune=None)
        compared = plan(self.work.wish.source, plain, self.work.wish.container)
        every = self.work.model.measure(build.make(compared, self.work.model.squares))
        held_out = every[self.work.settings.probe_windows :]
        spread = float(held_out.std(ddof=1)) if len(held_out) > 1 else 0.0
        figures = MeasuredChoice(
            what=what,
            bytes=self.plan(choice).promised_bytes + self.budget.overhead,
            predicted=total_cost(self.groups, choice),
            divergence=float(held_out.mean()),
            deviation=spread / math.sqrt(len(held_out)),
        )
        return _Compared(choice, figures)

    def recipe(self, choice: tuple[int, ...]) -> Recipe:
        """Return a choice as a recipe with a rule for every matrix."""
        wish = self.work.wish
        rounding = wish.base.rules[0].activations
        rules = tuple(
            Rule(match=slot, format=group.formats[index], activations=rounding)
            for group, index in zip(self.groups, choice, strict=True)
            for slot in group.slots
        )
        name = f"{wish.base.method}-{wish.target.text}"
        return msgspec.structs.replace(wish.base, name=name, rules=rules)

    def plan(self, choice: tuple[int, ...]) -> QuantizationPlan:
        """Plan a choice."""
        return plan(self.work.wish.source, self.recipe(choice), self.work.wish.container)

    def record(
        self,
        compared: tuple[_Compared, _Compared],
        windows: Sequence[NDArray[np.int32]],
        method: str,
    ) -> AllocationRecord:
        """Return what was done and why; the first of the two compared is the allocated choice."""
        allocated, uniform = (one.measured for one in compared)
        better = min(compared, key=lambda one: one.measured.divergence)
        lengths = self.work.model.lengths
        probed = sum(lengths[: self.work.settings.probe_windows])
        planned = self.plan(better.choice)
        counts = Counter(t.format.name for t in planned.tensors if t.status == "quantized")
        notes = []
        if self.work.together:
            notes.append("matrices that read the same input were probed together")
        if any(one.divergence is None for one in self.sensitivities):
            layers = ", ".join(map(str, sorted(self.work.layers - {OUTSIDE})))
            notes.append(f"layers {layers} were probed, and the others reckoned by depth")
        if self.work.wish.base.transforms or self.work.wish.base.tune:
            notes.append("the choices were compared without the recipe's transforms and tuning")
        return AllocationRecord(
            target_bytes=self.budget.target,
            counts=self.budget.counts,
            bytes=better.measured.bytes,
            chosen="allocated" if better is compared[0] else "uniform",
            allocated=allocated,
            uniform=uniform,
            method=method,
            probe_format=self.work.probe,
            probe_tokens=probed,
            held_out_tokens=sum(lengths) - probed,
            windows_sha256=window_digest(windows),
            formats=dict(counts),
            sensitivities=tuple(map(_recorded, self.sensitivities)),
            notes=tuple(notes),
        )


def _recorded(one: Sensitivity) -> SlotSensitivity:
    return SlotSensitivity(
        slots=one.unit.slots,
        divergence=one.divergence,
        deviation=one.deviation,
        smoothed=one.smoothed,
    )
