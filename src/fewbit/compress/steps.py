"""What is tried, in order of cost: rounded, solved, some layers raised, formats allocated, tuned.

The order is fixed before anything is made. What was measured on the way decides which steps are
left out, and which layers are raised; the same evidence gives the same steps again, so that a run
that was stopped goes on as it would have gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from msgspec.structs import replace

from fewbit.compress.failures import (
    distance,
    failure_of,
    foreseen,
    hindering,
    hopeless,
    worst_first,
)
from fewbit.compress.runtimes import FORMATS, suited
from fewbit.recipes import built_in
from fewbit.records.evaluation import Attempt
from fewbit.records.recipe import Recipe
from fewbit.records.runtime import Runtime
from fewbit.records.scan import TensorError


class Kind(Enum):
    """How the recipe of a step comes about."""

    NAMED = "named"
    """It is a built-in one."""
    RAISED = "raised"
    """The best so far, the worst matrices in the next larger format."""
    ALLOCATED = "allocated"
    """Formats are chosen for every matrix by measuring what each does to the output."""
    TUNED = "tuned"
    """The best so far, and then trained against the source."""


@dataclass(frozen=True)
class Step:
    """One thing to try."""

    name: str
    kind: Kind
    recipe: Recipe | None
    """None where it is made of what was found before."""
    factor: float
    """Its divergence beside GPTQ's in the best uniform format of the budget, as measured on
    SmolLM2-135M at 4.5 to 5 bits (docs/recipes.md); of another model only its order is certain."""
    why: str = ""


_METHODS = (
    ("rtn", 2.87),
    ("gptq", 1.0),
    ("awq", 0.86),
    ("gptq-refined", 0.945),
    ("awq-gptq-refined", 0.80),
)
"""By the time they take, with their divergences beside GPTQ's."""
_RAISED, _ALLOCATED, _TUNED = 0.6, 0.3, 0.27
BASE = "awq-gptq-refined"
"""How the codes of allocated formats are found."""


def named_steps(form: str, runtime: Runtime) -> list[Step]:
    """Return the steps that give every layer one format; for vLLM weights alone are quantized."""
    ending = "-wo" if runtime == "vllm" else ""
    return [
        Step(recipe.name, Kind.NAMED, suited(recipe, runtime), factor)
        for recipe, factor in ((built_in(f"{m}-{form}{ending}"), f) for m, f in _METHODS)
    ]


def base_step(form: str, runtime: Runtime) -> Step:
    """Return the step that finds the codes of one format best."""
    return next(step for step in named_steps(form, runtime) if step.name.startswith(f"{BASE}-"))


def all_steps(form: str, runtime: Runtime, budget: str, *, tuning: bool) -> list[Step]:
    """Return every step for a budget whose best uniform format is `form`.

    Args:
        form: the largest format that fits.
        runtime: what the artefact is for.
        budget: as the user wrote it, for names.
        tuning: whether what tunes is installed.
    """
    steps = [*named_steps(form, runtime), Step(f"raised-{budget}", Kind.RAISED, None, _RAISED)]
    if runtime != "vllm":  # it has too few formats to choose from
        steps.append(Step(f"allocated-{budget}", Kind.ALLOCATED, None, _ALLOCATED))
    return [*steps, Step(f"tuned-{budget}", Kind.TUNED, None, _TUNED)] if tuning else steps


Tried = Sequence[tuple[Step, Attempt]]
"""What was tried so far."""


def reason_to_leave_out(step: Step, tried: Tried, *, last: bool) -> str:
    """Return why a step is not worth its time after what was tried, or nothing.

    The last one is never foreseen to be hopeless, nor are allocated formats, which training builds
    on: where none is accepted they are to be the closest.
    """
    if not tried:
        return ""
    failure = failure_of(tried[-1][1].evaluation)
    if step.kind in (Kind.NAMED, Kind.TUNED) and failure.of_formats:
        return (
            f"{', '.join(failure.names)} hindered {tried[-1][0].name}, and another way of finding "
            "the codes changes neither bytes nor kernels."
        )
    if last or step.kind is Kind.ALLOCATED:
        return ""
    return hopeless([(attempt, earlier.factor) for earlier, attempt in tried], step.factor)


def reason_to_try(step: Step, tried: Tried) -> str:
    """Return what of the attempts so far speaks for a step; nothing where there was none."""
    if not tried:
        return ""
    last, attempt = tried[-1]
    said = f"{hindering(attempt.evaluation)} hindered {last.name}"
    value = foreseen([(attempt, earlier.factor) for earlier, attempt in tried], step.factor)
    if value is None:
        return f"{said}."
    return f"{said}; by what was measured a mean KL of about {value:.2g} nats can be expected."


def best_of(tried: Tried) -> tuple[Step, Attempt]:
    """Return what is nearest to being accepted; at least one was tried."""
    return min(tried, key=lambda one: distance(one[1].evaluation))


def ground(tried: Tried, base: Step | None) -> tuple[Step, Attempt]:
    """Return what a step builds on, and the attempt whose errors say where.

    That is the nearest attempt. Where the best way of finding codes was left out as hopeless by
    itself, a worse way's is no ground: then it is that best way all the same.

    Args:
        tried: at least one attempt.
        base: the step that finds codes best; None where it cannot be made.
    """
    best, attempt = best_of(tried)
    if base is None or base.name in {step.name for step, _ in tried}:
        return best, attempt
    return (base if best.factor > base.factor else best), attempt


def tuned(step: Step, tried: Tried, base: Step | None) -> Step:
    """Return a step with the recipe of the best so far, whole weights trained behind its grid.

    Args:
        step: what it is for.
        tried: at least one attempt.
        base: as for `ground`.
    """
    chosen, _ = ground(tried, base)
    assert chosen.recipe is not None
    recipe = replace(chosen.recipe, name=step.name, tune="weights")
    nearest = chosen.name in {earlier.name for earlier, _ in tried}
    which = "was the nearest" if nearest else "finds codes best"
    return Step(
        step.name, step.kind, recipe, step.factor, f"{chosen.name} {which}, and is trained."
    )


def raised(
    step: Step, tried: Tried, base: Step | None, runtime: Runtime, fits: Callable[[Recipe], bool]
) -> Step | str:
    """Return a step that raises the worst matrices of the best so far, or why none can be.

    Args:
        step: what it is for.
        tried: at least one attempt.
        base: as for `ground`.
        runtime: whose formats there are.
        fits: whether a recipe is in the budget; what raises more matrices takes more bytes.
    """
    chosen, attempt = ground(tried, base)
    changes = _raises(worst_first(attempt.evaluation.tensors), FORMATS[runtime])
    count = _most(len(changes), lambda n: fits(_with(chosen.recipe, changes[:n], step.name)))
    if not count:
        return "The budget has no room for a larger format of any matrix."
    names = ", ".join(f"{t.slot} ({t.relative_error:.3f})" for t, _ in changes[: min(count, 3)])
    why = (
        f"{chosen.name} with the next larger format for {count} matrices, those with the largest "
        f"errors in {attempt.recipe}: {names} first."
    )
    recipe = _with(chosen.recipe, changes[:count], step.name)
    return Step(step.name, step.kind, recipe, step.factor, why)


def _raises(tensors: Sequence[TensorError], forms: Sequence[str]) -> list[tuple[TensorError, str]]:
    """Return matrices with the format after their own, those without one left out."""
    after = dict(pairwise(forms))
    return [(t, after[t.candidate_format]) for t in tensors if t.candidate_format in after]


def _with(recipe: Recipe | None, raises: Sequence[tuple[TensorError, str]], name: str) -> Recipe:
    assert recipe is not None
    activations = recipe.rules[0].activations
    rules = (
        replace(built_in(f"rtn-{form}").rules[0], role=None, match=t.slot, activations=activations)
        for t, form in raises
    )
    return replace(recipe, name=name, rules=(*rules, *recipe.rules))


def _most(count: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `count` that fits, where fewer fit if more do."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
