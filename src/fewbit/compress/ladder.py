"""Recipes that make a source smaller: sorted by size, and the largest format within a budget."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit.compress.making import Workshop
from fewbit.compress.runtimes import FORMATS, suited
from fewbit.errors import UnsupportedError, UsageError
from fewbit.quantization import QuantizationPlan
from fewbit.quantization.target import Budget, Target
from fewbit.recipes import built_in
from fewbit.records.evaluation import Untried
from fewbit.records.figures import size
from fewbit.records.recipe import Recipe
from fewbit.records.runtime import Runtime

LADDER = (
    "rtn-int3-g32",
    "rtn-int4-g64",
    "rtn-int4-g32",
    "rtn-int4-g32-asym",
    "rtn-int5-g64",
    "rtn-int6-g64",
    "rtn-int8-g64",
)
"""The recipes tried for fewbit where neither recipes nor a budget are named; each is a step of
quality at a step of size."""


def usual_recipes(runtime: Runtime) -> tuple[Recipe, ...]:
    """Return the recipes that are tried for a runtime where none is named."""
    ending = "-wo" if runtime == "vllm" else ""
    others = (f"rtn-{form}{ending}" for form in FORMATS[runtime])
    names = LADDER if runtime == "fewbit" else others
    return tuple(suited(built_in(name), runtime) for name in names)


def ladder(
    workshop: Workshop, recipes: Sequence[Recipe]
) -> tuple[list[QuantizationPlan], list[Untried]]:
    """Return the plans that make the source smaller, small to large, and why others do not.

    Raises:
        UsageError: no recipe is given, or none is left.
    """
    if not recipes:
        raise UsageError("No recipe is named; leave --recipe out to try the usual ones.")
    plans: list[QuantizationPlan] = []
    left_out: list[Untried] = []
    for recipe in _distinct(recipes):
        found = planned(workshop, recipe)
        if isinstance(found, QuantizationPlan):
            reason = _why_not(found, plans)
            if not reason:
                plans.append(found)
                continue
            found = untried(recipe.name, reason, found.promised_bytes)
        left_out.append(found)
    if not plans:
        reasons = " ".join(f"{u.recipe}: {u.reason}" for u in left_out[:3])
        raise UsageError(f"No recipe would make {workshop.source.path} smaller. {reasons}")
    return sorted(plans, key=lambda found: found.promised_bytes), left_out


def format_within(workshop: Workshop, target: Target) -> tuple[str, Budget]:
    """Return the largest format, for all layers alike, that a budget has room for.

    Raises:
        UsageError: not even the smallest fits; says how much it takes.
        UnsupportedError: the runtime takes none.
    """
    forms, refused, larger = FORMATS[workshop.runtime], [], []
    for form in reversed(forms):
        found = planned(workshop, suited(built_in(f"rtn-{form}"), workshop.runtime))
        if isinstance(found, Untried):
            refused.append(f"{form}: {found.reason}")
            continue
        budget = workshop.budget(target, form)
        if found.promised_bytes <= budget.tensors:
            return form, budget
        larger.append((found.promised_bytes, form, budget.tensors))
    least = [
        f"{form}: it takes {size(taken)}, and there is room for {size(max(room, 0))}."
        for taken, form, room in sorted(larger)[:1]
    ]
    raise UsageError(
        f"No format of {workshop.source.path} for {workshop.runtime} lies within {target.text}. "
        f"{' '.join([*least, *refused][:3])}"
    )


def planned(workshop: Workshop, recipe: Recipe) -> QuantizationPlan | Untried:
    """Return the plan of a recipe, or why there is none."""
    try:
        return workshop.planned(recipe)
    except (UsageError, UnsupportedError) as error:
        return untried(recipe.name, str(error))


def untried(name: str, reason: str, promised_bytes: int | None = None) -> Untried:
    """Return the record of what was left out."""
    return Untried(recipe=name, promised_bytes=promised_bytes, reason=reason)


def _why_not(found: QuantizationPlan, earlier: Sequence[QuantizationPlan]) -> str:
    """Return why a plan is not worth an attempt, or nothing."""
    if found.promised_bytes >= found.source_bytes:
        return (
            f"It promises {size(found.promised_bytes)}, no less than the source's "
            f"{size(found.source_bytes)}."
        )
    same = (other.recipe.name for other in earlier if _gives_the_same(found, other))
    twin = next(same, None)
    return f"It gives every tensor the same format as {twin}." if twin else ""


def _distinct(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Return recipes without repeats; what is made and measured of each is kept by its name."""
    named: dict[str, Recipe] = {}
    for recipe in recipes:
        if named.setdefault(recipe.name, recipe) != recipe:
            raise UsageError(f"Two recipes are named '{recipe.name}'; rename one of them.")
    return list(named.values())


def _gives_the_same(one: QuantizationPlan, other: QuantizationPlan) -> bool:
    return _made(one) == _made(other)


def _made(plan: QuantizationPlan) -> object:
    recipe = plan.recipe
    tensors = [(tensor.format, tensor.method, tensor.activations) for tensor in plan.tensors]
    solved = tensors, recipe.transforms, recipe.propagation
    return *solved, recipe.tune, recipe.tune_steps, recipe.kv
