"""Which kernel each matrix of a model gets under its settings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from fewbit.errors import KernelError
from fewbit.formats.spec import QuantTensor
from fewbit.model.binding import Choose, bind
from fewbit.model.decoder import build_program
from fewbit.model.weights import ModelSource
from fewbit.program import Program, Slot
from fewbit.records.kernels import Activations, KernelPlan, KernelRecord
from fewbit.runtime.chooser import choose, choose_isa, demand, rounding_of
from fewbit.runtime.executor import Binding
from fewbit.runtime.pack import Layout
from fewbit.runtime.reference import choose_reference

if TYPE_CHECKING:
    from fewbit.model.runner import RunSettings


def bound(source: ModelSource, program: Program, settings: RunSettings) -> Binding:
    """Return a Program with a tensor and a kernel for every slot; raises as `planned_kernels`."""
    binding = bind(source, program, _chooser(source, settings))
    if settings.kernel is not None:
        _require_used(settings.kernel, binding.kernels.values())
    return binding


def planned_kernels(source: ModelSource, settings: RunSettings) -> tuple[KernelRecord, ...]:
    """Return the kernels that `runner_of` would choose, in order of first use; nothing is packed.

    Raises:
        KernelError: no kernel can run a matrix, or not the one that is forced.
    """
    return tuple(bound(source, build_program(source.config), settings).kernels.values())


def kernel_plan(source: ModelSource, settings: RunSettings) -> KernelPlan:
    """Return the kernels that `runner_of` would choose, with where and on what; nothing is packed.

    Raises:
        KernelError: as `planned_kernels`.
    """
    kernels = planned_kernels(source, settings)
    return KernelPlan(
        model=source.path.stem if source.path.is_file() else source.path.resolve().name,
        path=str(source.path),
        isa=choose_isa(demand(settings.isa, settings.kernel).isa),
        kernels=kernels,
    )


def _chooser(source: ModelSource, settings: RunSettings) -> Choose:
    """Return the executor's chooser; inputs are rounded as the settings or else the model say."""

    def activations(slot: Slot) -> Activations:
        return settings.activations or source.activations(slot)

    if settings.executor == "reference":
        return lambda slot, tensor: choose_reference(
            slot, tensor, activations(slot), source.input_scale(slot)
        )
    wanted = demand(settings.isa, settings.kernel, settings.activations)

    layout = Layout.NESTED if settings.nested else Layout.PLAIN

    def native(slot: Slot, tensor: QuantTensor) -> KernelRecord:
        asked = replace(wanted, input_scale=source.input_scale(slot), layout=layout)
        if activations(slot) is Activations.INT8:  # the chooser's default, unless it is asked for
            return choose(slot, tensor, asked)
        return choose(slot, tensor, replace(asked, activations=rounding_of(activations(slot))))

    return native


def _require_used(kernel: str, chosen: Collection[KernelRecord]) -> None:
    if any(record.kernel == kernel for record in chosen):
        return
    packed = sorted({record.kernel.partition("/")[0] for record in chosen})
    raise KernelError(
        f"Kernel '{kernel}' was asked for, but no matrix of the model has its weights; they are "
        f"packed as {', '.join(packed)}."
    )
