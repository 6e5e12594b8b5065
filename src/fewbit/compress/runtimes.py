"""What a runtime takes: the formats it has, and what it would refuse of an artefact."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from fewbit.errors import KernelError, UnsupportedError
from fewbit.export.plan import plan_export
from fewbit.export.target import ExportSettings
from fewbit.export.targets import find_target
from fewbit.model.binding import is_vector
from fewbit.quantization.planned import Container, QuantizationPlan
from fewbit.quantization.planned_source import planned_source
from fewbit.records.export import ExportPlan
from fewbit.records.recipe import Recipe, Role
from fewbit.records.runtime import Runtime
from fewbit.runtime.chooser import choose

EXPORTS: Mapping[str, str] = MappingProxyType({"llama.cpp": "gguf", "vllm": "compressed-tensors"})
"""The export that a runtime reads."""

FORMATS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fewbit": (
            "int2-g32",
            "int3-g64",
            "int3-g32",
            "int4-g128",
            "int4-g64",
            "int4-g32",
            "int5-g64",
            "int6-g64",
            "int8-g64",
            "int8-g32",
        ),
        "llama.cpp": ("q2_k", "q3_k", "iq4_xs", "q4_0", "q5_0", "q6_k", "q8_0"),
        "vllm": ("int4-g128", "int4-g64", "int4-g32"),
    }
)
"""What is tried for a runtime, from small to large; vLLM has weights alone of 4 bits on CPUs."""

_TABLES = (Role.EMBEDDING, Role.HEAD)


def suited(recipe: Recipe, runtime: Runtime) -> Recipe:
    """Return a built-in recipe as a runtime takes it: vLLM refuses most quantized tables."""
    if runtime != "vllm":
        return recipe
    layers = tuple(rule for rule in recipe.rules if rule.role not in _TABLES)
    return replace(recipe, rules=layers)


def container_for(runtime: Runtime) -> Container:
    """Return what an artefact for a runtime is made as; vLLM's is exported from a folder."""
    return Container.GGUF if runtime == "llama.cpp" else Container.FEWBIT


def refusals(planned: QuantizationPlan, runtime: Runtime) -> tuple[str, ...]:
    """Return what a runtime would refuse of an artefact, or that has to change on the way to it.

    For llama.cpp and vLLM that is what the export to their format would say.
    """
    if runtime == "fewbit":
        return _without_kernel(planned)
    if reads_as_it_is(planned, runtime):
        return ()
    try:
        found = export_of(planned, runtime)
    except UnsupportedError as error:
        return (str(error),)
    counts: dict[tuple[str, str, str], int] = {}
    for tensor in found.changed:
        kind = tensor.source_format, tensor.format, tensor.reason
        counts[kind] = counts.get(kind, 0) + 1
    changed = tuple(
        f"{count} tensors in {before} become {after} ({reason})."
        for (before, after, reason), count in counts.items()
    )
    return (*found.refusals, *changed)


def reads_as_it_is(planned: QuantizationPlan, runtime: Runtime) -> bool:
    """Return whether a runtime of others reads the artefact without an export."""
    return runtime == "llama.cpp" and planned.container is Container.GGUF


def export_of(planned: QuantizationPlan, runtime: Runtime) -> ExportPlan:
    """Return the plan of the export that a runtime reads; raises as `plan_export`."""
    target = find_target(EXPORTS[runtime], ExportSettings())
    return plan_export(planned_source(planned), target).record


def _without_kernel(planned: QuantizationPlan) -> tuple[str, ...]:
    """Return the formats that no kernel of ours reads, each with a matrix that has it."""
    source, found = planned_source(planned), {}
    for slot in source.slots:
        if is_vector(slot) or source.info(slot).format in found:
            continue
        try:
            choose(slot, source.outline(slot))
        except KernelError as error:
            found[source.info(slot).format] = str(error)
    return tuple(found.values())
