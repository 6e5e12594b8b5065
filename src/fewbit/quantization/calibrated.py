"""Solving every matrix of a plan against the inputs that calibration text brings it.

Where the recipe has a propagation, the source runs beside, and layers are fitted to what its inputs
would give (`methods/propagation.py`).

The input table is rounded first, without statistics, so that the inputs that layers are solved for
carry its error. A table that is also the head is rounded to nearest there, and solved at the end
against the final norm's output; that one is written, and both ops use it. It errs about as much as
the first, which is all that the layers' statistics depend on, and the other order would need a run
of the whole model before the first layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fewbit.calibrate.calibration import CalibrationSet
from fewbit.methods.solvers import METHODS, Need
from fewbit.methods.statistics import InputStatistics
from fewbit.model.decoder import build_program
from fewbit.model.weights import ModelSource
from fewbit.program import Embed, Program, Slot
from fewbit.quantization.bound import BoundModel
from fewbit.quantization.planned import PlannedTensor, QuantizationPlan
from fewbit.quantization.resume import SolvedStore
from fewbit.quantization.solving import Solved, solve, solve_alone, solve_with
from fewbit.quantization.walk import Cut, WalkOptions, cuts, walk
from fewbit.records.calibration import Inputs
from fewbit.records.kernels import Activations
from fewbit.runtime.native import Pool, thread_pool

Progress = Callable[[int, int, str], None]
"""Told the cuts that are done, how many there are, and what comes next."""


_WITHOUT_DRIFT = (
    "Errors of earlier layers are not made up for: other tokens reach this expert in the source."
)


@dataclass(frozen=True, kw_only=True)
class Solving:
    """How a plan's matrices are solved."""

    calibration: CalibrationSet
    inputs: Inputs = "quantized"
    threads: int
    store: SolvedStore | None = None
    """What earlier runs solved, and where this one keeps what it solves."""
    progress: Progress = lambda _done, _all, _next: None


def solve_plan(planned: QuantizationPlan, solving: Solving) -> dict[Slot, Solved]:
    """Walk the model and return the solved tensor of every matrix that the plan quantizes.

    Raises:
        NumericalError: a weight or a state is not finite; says where.
        KernelError: no kernel can run a matrix.
        UsageError: the calibration text does not fit in memory.
    """
    program = build_program(planned.source.config)
    pool = thread_pool(solving.threads)
    release = _release(planned.source, solving.store)
    walker = _Walker(planned, solving, BoundModel(planned.source, program, pool, release))
    walker.begin()
    gram = (t.slot for t in planned.tensors if t.method and METHODS[t.method].needs is Need.GRAM)
    options = WalkOptions(
        pool,
        gram=frozenset(gram),
        source=_beside(planned, program, pool),
        propagation=planned.recipe.propagation,
    )
    walk(program, solving.calibration, walker.model, walker.visit, options)
    return walker.solved


def _beside(planned: QuantizationPlan, program: Program, pool: Pool) -> BoundModel | None:
    """Return the source's model where layers are fitted to what it puts out."""
    if not planned.recipe.propagation:
        return None
    return BoundModel(planned.source, program, pool)


def _release(source: ModelSource, store: SolvedStore | None) -> Callable[[Slot], None]:
    """Return what lets go of the pages of a slot, in the source and among what is solved."""

    def release(slot: Slot) -> None:
        source.release(slot)
        if store is not None:
            store.release(slot)

    return release


class _Walker:
    """Solves at each cut and lets the solved tensors run from there on."""

    def __init__(self, planned: QuantizationPlan, solving: Solving, model: BoundModel) -> None:
        self.solved: dict[Slot, Solved] = {}
        self._unsaved: dict[Slot, Solved] = {}
        self.model = model
        self._planned = planned
        self._solving = solving
        self._cuts = cuts(model.program)
        self._tables = [op.weight for op in model.program.ops if isinstance(op, Embed)]
        self._of = {t.slot: t for t in planned.tensors if t.status == "quantized"}

    def begin(self) -> None:
        """Round the input table."""
        for slot in self._tables:
            if slot in self._of:
                self._solving.progress(0, len(self._cuts), slot)
                self._take(slot, self._table(slot))

    def _table(self, slot: Slot) -> Solved:
        if all(slot not in cut.slots for cut in self._cuts):
            return solve_alone(self._planned, self._of[slot])
        tensor = self._of[slot]
        stored = self._planned.source.read(slot)
        return solve(stored, tensor.format, "rtn", tensor.source.name)

    def visit(self, cut: Cut, statistics: Callable[[], InputStatistics]) -> None:
        """Solve the matrices of a cut, unless they are there from an earlier run."""
        number = self._cuts.index(cut)
        self._solving.progress(number, len(self._cuts), cut.slots[0])
        slots = [slot for slot in cut.slots if slot in self._of]
        store = self._solving.store
        found = {} if store is None else {s: store.found[s] for s in slots if s in store.found}
        if len(found) < len(slots):
            found = self._solved(slots, statistics)
            self._unsaved |= found
        for slot, solved in (found | self._saved(number)).items():
            self._take(slot, solved)
            self._planned.source.release(slot)

    def _solved(
        self, slots: Sequence[Slot], statistics: Callable[[], InputStatistics]
    ) -> dict[Slot, Solved]:
        """Solve matrices that read one input, whose statistics are taken where one needs them."""
        tensors = [self._of[slot] for slot in slots]
        if not any(map(_looks_at_inputs, tensors)):
            return {tensor.slot: solve_alone(self._planned, tensor) for tensor in tensors}
        taken = statistics()
        if self._planned.recipe.propagation and taken.gram is not None and taken.drift is None:
            taken = replace(taken, remarks=(*taken.remarks, _WITHOUT_DRIFT))
        return {tensor.slot: solve_with(self._planned, tensor, taken) for tensor in tensors}

    def _saved(self, number: int) -> dict[Slot, Solved]:
        """Keep what is solved, and return it as it is kept; a good place to stop.

        Of experts when all of a mixture are, so that files stay few.
        """
        behind = self._cuts[number + 1 : number + 2]
        between = any(cut.index == self._cuts[number].index for cut in behind)
        store = self._solving.store
        if store is None or between:
            return {}
        kept = store.save(number, self._unsaved) if self._unsaved else {}
        self._unsaved = {}
        store.stop.check()
        return kept

    def _take(self, slot: Slot, solved: Solved) -> None:
        self.solved[slot] = solved
        if self._solving.inputs == "quantized":
            rounding = self._of[slot].rounding(solved.input_scale)
            self.model.replace(slot, solved.tensor, rounding, solved.input_scale)


def _looks_at_inputs(tensor: PlannedTensor) -> bool:
    static = tensor.activations is Activations.STATIC
    return static or METHODS[tensor.method].needs is not Need.NOTHING
