"""Planning: every tensor is decided before anything is done."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.errors import UnsupportedError, UsageError
from fewbit.formats.registry import DECODABLE, F32, encoded_bytes, is_integer, parse_format
from fewbit.formats.spec import BlockSpec, NumberFormat
from fewbit.methods.solvers import METHODS, Need
from fewbit.model.families import gguf_name, is_router
from fewbit.model.gguf import ROPE_DIVISORS
from fewbit.model.gguf_view import as_gguf, origin_of
from fewbit.model.transformed import TransformedSource
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.quantization.planned import Container, PlannedTensor, QuantizationPlan
from fewbit.quantization.transforming import ONLINE, outline
from fewbit.records.kernels import Activations
from fewbit.records.recipe import KEEP, Recipe, Role, Rule

_SHOWN = 5
"""Names listed in an error; a count stands for the rest."""


def plan(
    source: ModelSource, recipe: Recipe, container: Container = Container.FEWBIT
) -> QuantizationPlan:
    """Decide every tensor.

    A matrix gets the format of the first rule that fits it; it is kept where no rule does, where
    the rule says so, and where the source already stores it in at most as many bytes. Vectors are
    kept. A tied table counts as the head. With transforms, the plan's source is the outline of what
    they will leave: tensors they touch are in float32 where they are kept.

    Raises:
        UsageError: a pattern fits no matrix, a group divides no row and no fallback does, or
            nothing would change.
        UnsupportedError: the container cannot hold a format or cannot be made from this source, or
            a tensor to be quantized cannot be decoded, or a method cannot make a format, or a
            transform cannot be applied.
    """
    _check_container(source, recipe, container)
    if container is Container.GGUF:
        source = as_gguf(source)
    planned = _plan(source, recipe, container)
    if not recipe.transforms:
        return planned
    return _plan(outline(source, recipe.transforms, planned.formats), recipe, container)


def _plan(source: ModelSource, recipe: Recipe, container: Container) -> QuantizationPlan:
    planner = _Planner(source, recipe, container, _roles(source))
    _check_patterns(planner)
    _check_division(planner)
    slots = _slots_by_name(source)
    tensors = tuple(
        planned
        for name, info in source.checkpoint.tensors.items()
        for planned in planner.all_planned(info, slots[name])
    )
    if all(tensor.status != "quantized" for tensor in tensors):
        raise UsageError(
            f"The recipe '{recipe.name}' would quantize nothing in {source.path}: "
            f"{_why_nothing(tensors)}; choose a smaller format, or leave the model as it is."
        )
    _check_methods(planner, tensors)
    return QuantizationPlan(source, recipe, container, (*tensors, *_left_out(source)))


def require_rules_used(planned: QuantizationPlan) -> None:
    """Refuse a recipe with a rule that names matrices and never gets one.

    Raises:
        UsageError: rules before it take them all.
    """
    planner = _Planner(planned.source, planned.recipe, planned.container, _roles(planned.source))
    used = {id(planner.rule(slot)) for slot in planner.roles}
    for number, rule in enumerate(planned.recipe.rules, 1):
        if rule.match is not None and id(rule) not in used:
            raise UsageError(
                f"Rule {number} of recipe '{planned.recipe.name}' ('{rule.match}') never decides: "
                "the first rule that fits a matrix does, and those before it fit all of its; put "
                "it before them, or leave it out."
            )


def _left_out(source: ModelSource) -> Iterator[PlannedTensor]:
    """Yield the tensors that a source seen as a GGUF file has no place for."""
    origin = origin_of(source)
    for name in origin.unused if origin is not source else ():
        info = origin.checkpoint.tensors[name]
        yield PlannedTensor(
            source=info,
            stored="",
            slot="",
            format=info.format,
            status="absent",
            reason="the Program does not use it, and GGUF files have no name for it",
        )


@dataclass(frozen=True)
class _Planner:
    """Decides one tensor at a time."""

    source: ModelSource
    recipe: Recipe
    container: Container
    roles: Mapping[Slot, Role]
    """Of every matrix."""

    def all_planned(self, info: TensorInfo, slots: Sequence[Slot]) -> list[PlannedTensor]:
        """Return what becomes of a stored tensor, or of its parts: one for each slot.

        Raises:
            UsageError: the container keeps experts in one tensor, and they would differ in format.
        """
        parts = [slot for slot in slots if self.source.slots[slot].rows is not None]
        if not parts:
            return [self.planned(info, slot) for slot in slots or (None,)]
        found = [self.planned(self.source.info(slot), slot) for slot in parts]
        if self.container is Container.GGUF:
            _require_one_format(self.recipe, info.name, found)
        return found

    def planned(self, info: TensorInfo, slot: Slot | None) -> PlannedTensor:
        """Return what becomes of a tensor."""
        if slot is None:
            return self._outside(info)
        if slot not in self.roles:
            reason = "a router is kept" if is_router(slot) else "vectors are kept"
            return self._kept(info, slot, reason)
        rule = self.rule(slot)
        if rule is None:
            return self._kept(info, slot, "no rule of the recipe fits it")
        name = first_that_divides(rule, info)
        assert name is not None
        missed = rule.format if name != rule.format else ""
        why = f"{rule.format} does not divide {info.shape[-1]} columns" if missed else ""
        if name == KEEP:
            return self._kept(info, slot, why or "the recipe keeps it", missed)
        form, stored = parse_format(name), self.source.info(slot)
        if stored.nbytes <= encoded_bytes(form, info.matrix_shape):
            return self._kept(info, slot, _not_smaller(stored, form))
        return self._quantized(info, slot, form, missed, why)

    def rule(self, slot: Slot) -> Rule | None:
        """Return the first rule that fits a matrix."""
        for rule in self.recipe.rules:
            by_name = rule.match is not None and fnmatchcase(slot, rule.match)
            if by_name or rule.role is self.roles[slot]:
                return rule
        return None

    def _activations(self, slot: Slot, form: NumberFormat) -> Activations:
        """Return how the input of a matrix is rounded: as its rule says, where it matters."""
        rule = self.rule(slot) if slot in self.roles else None
        return Activations.INT8 if rule is None or not is_integer(form) else rule.activations

    def _quantized(
        self, info: TensorInfo, slot: Slot, form: NumberFormat, missed: str, why: str
    ) -> PlannedTensor:
        _require_decodable(info)
        rule = self.rule(slot)
        assert rule is not None
        return PlannedTensor(
            source=info,
            stored=self._stored_name(info, slot),
            slot=slot,
            format=form,
            status="quantized",
            method=rule.method or self.recipe.method,
            activations=self._activations(slot, form),
            fallback=missed,
            reason=why,
        )

    def _kept(self, info: TensorInfo, slot: Slot, reason: str, missed: str = "") -> PlannedTensor:
        return PlannedTensor(
            source=info,
            stored=self._stored_name(info, slot),
            slot=slot,
            format=self._kept_format(info, slot),
            status="kept",
            activations=self._activations(slot, info.format),
            fallback=missed,
            reason=reason,
        )

    def _kept_format(self, info: TensorInfo, slot: Slot) -> NumberFormat:
        """Return the format a kept tensor has in the artefact.

        Vectors of a GGUF file become float32 where an offset is taken out or their elements move,
        and so does what a transform touches or tuning may.
        """
        if isinstance(self.source, TransformedSource) and slot in self.source.edits:
            return F32
        if self.recipe.tune and len(info.shape) < 2 and not is_router(slot):
            return F32
        stored = self.source.slots[slot]
        moved = bool(stored.offset) or (stored.order is not None and len(info.shape) < 2)
        return F32 if moved and self.container is Container.FEWBIT else info.format

    def _stored_name(self, info: TensorInfo, slot: Slot) -> str:
        if self.container is not Container.GGUF:
            return self.source.huggingface_name(slot)
        return gguf_name(slot) if slot == "head.weight" else info.name

    def _outside(self, info: TensorInfo) -> PlannedTensor:
        """Plan a tensor without a slot: kept where names agree, otherwise declared absent."""
        absent = self._why_absent(info.name)
        return PlannedTensor(
            source=info,
            stored="" if absent else info.name,
            slot="",
            format=info.format,
            status="absent" if absent else "kept",
            reason=absent or self._why_outside(info.name),
        )

    def _why_outside(self, name: str) -> str:
        if name == ROPE_DIVISORS:
            return "the Program has it as the frequencies of the rotation"
        return "the Program does not use it"

    def _why_absent(self, name: str) -> str:
        if self.container is Container.GGUF:
            return ""
        if name == ROPE_DIVISORS:
            return "the configuration holds it as rope scaling"
        if isinstance(self.source.checkpoint.facts, GgufFacts):
            return "the Program does not use it, and it has no name in the artefact's layout"
        if self.source.config.tied and name == self.source.huggingface_name("head.weight"):
            return "the configuration ties it to the embedding; the one table is stored once"
        return ""


def _check_container(source: ModelSource, recipe: Recipe, container: Container) -> None:
    if container is not Container.GGUF:
        return
    if recipe.kv is not None:
        raise UnsupportedError(
            f"The recipe '{recipe.name}' measures scales of keys and values ({recipe.kv.value}), "
            "which a GGUF file has no place for; write a folder instead, or leave kv out."
        )
    if source.config.mlp_rotation or not ONLINE.isdisjoint(recipe.transforms):
        raise UnsupportedError(
            f"With the recipe '{recipe.name}' this model's down projections read inputs that an op "
            "rotates (rotate-mlp), which a GGUF file has no place for; write a folder instead, or "
            "leave the rotation out."
        )
    for rule in recipe.rules:
        if rule.activations is not Activations.INT8:
            raise UnsupportedError(
                f"The recipe '{recipe.name}' rounds activations to {rule.activations.value}, which "
                "a GGUF file has no place for; write a folder instead."
            )
        for name in (rule.format, *rule.fallback):
            if name != KEEP and not isinstance(parse_format(name), BlockSpec):
                raise UnsupportedError(
                    f"The recipe '{recipe.name}' uses {name}, which GGUF has no type for; write a "
                    "folder instead, or choose rtn-q4_0 or rtn-q8_0."
                )


def _slots_by_name(source: ModelSource) -> Mapping[str, list[Slot]]:
    """Return the slots that lie in each stored tensor, in the order of their rows."""
    found: dict[str, list[Slot]] = {name: [] for name in source.checkpoint.tensors}
    for slot, stored in source.slots.items():
        found[stored.name].append(slot)
    for slots in found.values():
        slots.sort(key=lambda slot: (source.slots[slot].rows or slice(0)).start or 0)
    return found


def _require_one_format(recipe: Recipe, name: str, parts: Sequence[PlannedTensor]) -> None:
    other = next((part for part in parts if part.format != parts[0].format), None)
    if other is not None:
        raise UsageError(
            f"The recipe '{recipe.name}' puts {parts[0].slot} in {parts[0].format.name} and "
            f"{other.slot} in {other.format.name}, but a GGUF file has one tensor of one type for "
            f"them ({name}); give all experts of a layer the same format, or write a folder."
        )


def _roles(source: ModelSource) -> dict[Slot, Role]:
    """Return the role of every matrix but the routers; a tied table is a head."""
    roles = {}
    for slot in source.slots:
        if len(source.info(slot).shape) < 2 or is_router(slot):
            continue
        if slot == "head.weight" or (slot == "embed.weight" and source.config.tied):
            roles[slot] = Role.HEAD
        else:
            roles[slot] = Role.EMBEDDING if slot == "embed.weight" else Role.LINEAR
    return roles


def _check_patterns(planner: _Planner) -> None:
    roles = planner.roles
    for rule in planner.recipe.rules:
        pattern = rule.match
        if pattern is None or any(fnmatchcase(slot, pattern) for slot in roles):
            continue
        near = difflib.get_close_matches(pattern, roles, 3, cutoff=0.4)
        offer = f"near it are {', '.join(near)}" if near else f"there are {_listed(list(roles))}"
        raise UsageError(
            f"The pattern '{pattern}' of recipe '{planner.recipe.name}' fits no matrix of the "
            f"model; {offer}."
        )


def _check_division(planner: _Planner) -> None:
    refused = []
    for slot in planner.roles:
        rule, info = planner.rule(slot), planner.source.info(slot)
        if rule is not None and first_that_divides(rule, info) is None:
            refused.append(f"{info.name} with {info.shape[-1]} columns ({rule.format})")
    if refused:
        raise UsageError(
            f"The recipe '{planner.recipe.name}' does not fit {_listed(refused)}; choose a group "
            "size that divides the columns, or give the rule a fallback."
        )


def _check_methods(planner: _Planner, tensors: Iterable[PlannedTensor]) -> None:
    """Refuse now what a method could not make when its turn comes, perhaps hours later."""
    refused = []
    for tensor in tensors:
        method = METHODS.get(tensor.method)
        if method is None:  # it is kept
            continue
        looked_up = planner.roles[tensor.slot] is Role.EMBEDDING
        if looked_up and method.needs is not Need.NOTHING:
            method = METHODS[method.without_inputs]
        if not method.makes(tensor.format):
            refused.append(f"{tensor.label} ({tensor.format.name} by {tensor.method})")
    if refused:
        raise UnsupportedError(
            f"The recipe '{planner.recipe.name}' asks for what a method cannot make: "
            f"{_listed(refused)}; give the rule another method, rtn for example, or another format."
        )


def first_that_divides(rule: Rule, info: TensorInfo) -> str | None:
    """Return the first of a rule's formats whose groups divide a tensor's columns."""
    return next((name for name in (rule.format, *rule.fallback) if _divides(name, info)), None)


def _divides(name: str, info: TensorInfo) -> bool:
    if name == KEEP:
        return True
    try:
        encoded_bytes(parse_format(name), info.matrix_shape)
    except UsageError:
        return False
    return True


def _not_smaller(info: TensorInfo, form: NumberFormat) -> str:
    stored, wanted = (f.bits_per_weight(info.matrix_shape) for f in (info.format, form))
    return (
        f"the source's {info.format.name} has {stored:.4g} bits per weight, {form.name} would "
        f"have {wanted:.4g}"
    )


def _require_decodable(info: TensorInfo) -> None:
    if isinstance(info.format, BlockSpec) and info.format.name not in DECODABLE:
        raise UnsupportedError(
            f"{info.name} is in {info.format.name}, which cannot be decoded; supported: "
            f"{', '.join(DECODABLE)}."
        )


def _why_nothing(tensors: Iterable[PlannedTensor]) -> str:
    reasons = {t.reason for t in tensors if t.slot and len(t.source.shape) > 1}
    return "; ".join(sorted(reasons)[:_SHOWN]) or "it has no matrices"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
