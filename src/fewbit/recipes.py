"""The built-in recipes, by a grammar of names, and recipes of one's own in TOML.

`<method>-<format>` puts every matrix of the decoder layers in `format`: int2 to int8 in groups of
32, 64 or 128 or by row, symmetric or `-asym`, or a GGUF type. Input and output tables get more bits
than the layers where these have few, because every token passes through them: the head (also a
table shared with the input) at least 6 bits, and a separate input table at least 4. Of GGUF types
the head has q6_k, or q8_0 where the layers have q4_0 or q8_0, and a separate input table what the
layers have.

Where 128 or 64 does not divide a row, the next smaller group that does is taken. Where the 256 of a
GGUF type does not, the type of 32 that llama.cpp takes instead, and where that does not either, the
tensor is kept. All are recorded. `rtn-fp8` puts every matrix in fp8_e4m3 with a scale per row. The
ending `-wo` ("weight-only", of integers in groups or rows) has layers round their inputs to bf16
instead of int8. `awq-<format>` rescales channels by AWQ's search, then searches scales weighted by
the importance of inputs (the method `imatrix`, in the place of the paper's clipping);
`awq-gptq-<format>` and `awq-gptq-refined-<format>` solve by those methods instead.
`<rtn|smoothquant|rotated>-w8a8` puts everything in int8 by row, and the inputs of the layers in
int8 by token: plainly, after SmoothQuant's rescale, or after rotations of the residual stream, the
heads and inside the MLP and that rescale.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from fewbit.errors import BadFileError, UnsupportedError, UsageError
from fewbit.formats.registry import parse_format
from fewbit.formats.spec import NumberFormat, is_ordered
from fewbit.methods import solvers
from fewbit.records.kernels import Activations
from fewbit.records.recipe import KEEP, Recipe, Role, Rule
from fewbit.toml_file import read_toml, require_known_keys

METHODS = tuple(solvers.METHODS)

_BITS = range(2, 9)
_WHERE = ("g32", "g64", "g128", "row")
_ZEROS = ("", "-asym")
_HEAD_BITS = 6
_EMBEDDING_BITS = 4
_BLOCKS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl")
"""GGUF types of 32 inputs a block."""
SUPER_BLOCKS = {
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
    "iq4_xs": "iq4_nl",
}
"""GGUF types of 256 inputs a block, and what llama.cpp takes where 256 does not divide a row."""
_HEADS_OF_8_BITS = ("q4_0", "q8_0")
_FP8 = "rtn-fp8"
_WEIGHT_ONLY = "-wo"
_W8A8 = {
    "rtn-w8a8": (),
    "smoothquant-w8a8": ("smoothquant",),
    "rotated-w8a8": ("rotate-residual", "rotate-heads", "rotate-mlp", "smoothquant"),
}
"""The transforms of recipes for int8 weights and activations."""
_AWQ = "awq-"
_AWQ_METHOD = "imatrix"
"""Behind AWQ, where the name has no method."""
_BEHIND_AWQ = ("gptq", "gptq-refined")
"""The methods that a name may have behind `awq-`."""
_LONGEST_NAME = 100
"""Bytes: names of files have 255, and others add to it."""
_SMALLER = {"g128": ("g64", "g32"), "g64": ("g32",), "g32": (), "row": ()}


def built_in_names() -> tuple[str, ...]:
    """Return the name of every built-in recipe."""
    affine = [f"int{bits}-{where}{zero}" for bits in _BITS for where in _WHERE for zero in _ZEROS]
    starts = (*METHODS, _AWQ.removesuffix("-"), *(f"{_AWQ}{method}" for method in _BEHIND_AWQ))
    integers = [f"{start}-{form}" for start in starts for form in affine]
    blocks = [f"{start}-{form}" for start in starts for form in (*_BLOCKS, *SUPER_BLOCKS)]
    return (*integers, *(f"{name}{_WEIGHT_ONLY}" for name in integers), *blocks, _FP8, *_W8A8)


def built_in(name: str) -> Recipe:
    """Return a built-in recipe.

    Raises:
        UnsupportedError: there is none of that name; the message has near matches.
    """
    if name not in built_in_names():
        near = difflib.get_close_matches(name, built_in_names(), 3)
        offer = f"did you mean {' or '.join(near)}?" if near else "one is rtn-int4-g32."
        raise UnsupportedError(
            f"There is no recipe '{name}'; {offer} Recipes are <method>-<format>, a method of "
            f"{', '.join(METHODS)} (or awq, awq-gptq, awq-gptq-refined) and a format "
            "int<2..8>-<g32|g64|g128|row>[-asym][-wo] "
            f"or {', '.join((*_BLOCKS, *SUPER_BLOCKS))}; or {', '.join((*_W8A8, _FP8))}, or the "
            "path of a .toml file."
        )
    if name in _W8A8:
        return Recipe(name=name, method="rtn", rules=_w8a8_rules(), transforms=_W8A8[name])
    transforms = ("awq",) if name.startswith(_AWQ) else ()
    solved = _behind_awq(name.removeprefix(_AWQ)) if transforms else name
    method = _method_of(solved)
    form = solved.removesuffix(_WEIGHT_ONLY).removeprefix(f"{method}-")
    rules = _rules(form)
    if name.endswith(_WEIGHT_ONLY):
        rules = tuple(replace(rule, activations=Activations.BF16) for rule in rules)
    return Recipe(name=name, method=method, rules=rules, transforms=transforms)


def _behind_awq(name: str) -> str:
    """Return the name with its method, which is AWQ's own where it has none."""
    named = name.startswith(tuple(f"{method}-" for method in _BEHIND_AWQ))
    return name if named else f"{_AWQ_METHOD}-{name}"


def _method_of(name: str) -> str:
    """Return the longest method that a name begins with: gptq-refined rather than gptq."""
    return max((m for m in METHODS if name.startswith(f"{m}-")), key=len)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe from a TOML file with the fields of `Recipe`; rules are `[[rules]]` tables.

    Raises:
        MissingError: there is no such file.
        BadFileError: it is not TOML, or lacks a field, or has one that no recipe has.
        UsageError, UnsupportedError: a rule or the method cannot be, as `checked`.
    """
    table = read_toml(path, "recipe")
    _require_known_keys(path, table)
    try:
        recipe = msgspec.convert(table, Recipe)
    except msgspec.ValidationError as error:
        raise BadFileError(f"The recipe {path} is not valid: {error}.") from error
    return checked(recipe)


def to_toml(recipe: Recipe) -> str:
    """Return a recipe as a TOML file that `read_recipe` gives back; defaults are left out."""
    tables = msgspec.to_builtins(recipe)
    lines = [
        f"{key} = {_toml(value)}"
        for key, value in tables.items()
        if key != "rules" and value not in (None, [], 0)
    ]
    for rule in tables["rules"]:
        lines += ["", "[[rules]]"]
        lines += [
            f"{key} = {_toml(value)}"
            for key, value in rule.items()
            if value not in (None, []) and (key, value) != _DEFAULT_ROUNDING
        ]
    return "\n".join(lines) + "\n"


_DEFAULT_ROUNDING = ("activations", Activations.INT8.value)


def _toml(value: str | float | list[str]) -> str:
    """Return a string, a number or strings; JSON's are TOML's, but for the character DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _require_known_keys(path: Path, table: Mapping[str, Any]) -> None:
    """Refuse keys that no recipe has, each with those it may have been meant for.

    Raises:
        BadFileError: the first of them.
    """
    rules = table.get("rules", [])
    tables = [("a recipe", table, Recipe.__struct_fields__)]
    if isinstance(rules, list):
        fields = Rule.__struct_fields__
        tables += [("a rule", rule, fields) for rule in rules if isinstance(rule, dict)]
    for what, found, known in tables:
        require_known_keys(f"The recipe {path}", what, found, known)


def find(name: str) -> Recipe:
    """Return the recipe of a name: a path that ends in .toml, or a built-in one.

    Raises as `read_recipe` and `built_in`.
    """
    return read_recipe(Path(name)) if name.endswith(".toml") else built_in(name)


def checked(recipe: Recipe) -> Recipe:
    """Return the recipe if its method and its rules can be honoured.

    Raises:
        UnsupportedError: the method or a format is unknown; the message lists those there are.
        UsageError: no file can be named by it; or there is no rule, or one that has both a role and
            a pattern, or neither.
    """
    if not _is_file_name(recipe.name):
        raise UsageError(
            f"A recipe is named {recipe.name[:_LONGEST_NAME]!a}; files are named by it, so take 1 "
            f"to {_LONGEST_NAME} bytes of visible characters without a slash."
        )
    for method in recipe.methods:
        if method not in METHODS:
            raise UnsupportedError(
                f"The method '{method}' of recipe '{recipe.name}' is not known; there are "
                f"{', '.join(METHODS)}."
            )
    _check_propagation(recipe)
    if recipe.tune is None and recipe.tune_steps is not None:
        raise UsageError(
            f"The recipe '{recipe.name}' has tune_steps, but tunes nothing; add tune = \"scales\"."
        )
    if not recipe.rules:
        raise UsageError(f"The recipe '{recipe.name}' has no rules; give at least one.")
    for number, rule in enumerate(recipe.rules, 1):
        if (rule.role is None) == (rule.match is None):
            raise UsageError(
                f"Rule {number} of recipe '{recipe.name}' must have either a role or a match; "
                "give one of them."
            )
        if rule.format == KEEP and rule.method is not None:
            raise UsageError(
                f"Rule {number} of recipe '{recipe.name}' keeps its tensors, so its method "
                f"'{rule.method}' would do nothing; leave it out."
            )
        for form in (rule.format, *rule.fallback):
            if form != KEEP:
                _require_made(recipe.name, parse_format(form))
    return recipe


def _is_file_name(name: str) -> bool:
    fits = name.isprintable() and 0 < len(name.encode()) <= _LONGEST_NAME
    return fits and "/" not in name


def _check_propagation(recipe: Recipe) -> None:
    """Refuse a part that is none, and one that no method of the recipe can take.

    Raises:
        UsageError: the message has the value, or the methods that can.
    """
    if not 0 <= recipe.propagation <= 1:
        raise UsageError(
            f"propagation is {recipe.propagation:g} in the recipe '{recipe.name}'; it is a part, "
            "from 0 to 1."
        )
    able = [name for name, method in solvers.METHODS.items() if method.needs is solvers.Need.GRAM]
    if recipe.propagation and not set(able) & set(recipe.methods):
        raise UsageError(
            f"The recipe '{recipe.name}' has propagation, and its method {recipe.method} cannot "
            f"make up for errors of earlier layers; take {' or '.join(able)}, or leave it out."
        )


def _require_made(recipe: str, form: NumberFormat) -> None:
    if is_ordered(form):
        raise UsageError(
            f"The recipe '{recipe}' asks for {form.name}, but an order of columns comes with a "
            f"file; ask for {form.laid_out.name}."
        )


def _w8a8_rules() -> tuple[Rule, ...]:
    layers = Rule(role=Role.LINEAR, format="int8-row", activations=Activations.TOKEN)
    return layers, *(Rule(role=r, format="int8-row") for r in (Role.EMBEDDING, Role.HEAD))


def _rules(form: str) -> tuple[Rule, ...]:
    if form == _FP8.removeprefix("rtn-"):
        return tuple(Rule(role=role, format="fp8_e4m3-row") for role in Role)
    is_block = form in _BLOCKS or form in SUPER_BLOCKS
    return _block_rules(form) if is_block else _affine_rules(form)


def _affine_rules(form: str) -> tuple[Rule, ...]:
    integer, where, *_ = form.split("-")
    bits = int(integer.removeprefix("int"))
    zero = "-asym" if form.endswith("-asym") else ""

    def rule(role: Role, least: int) -> Rule:
        stem = f"int{max(bits, least)}"
        fallback = tuple(f"{stem}-{smaller}{zero}" for smaller in _SMALLER[where])
        return Rule(role=role, format=f"{stem}-{where}{zero}", fallback=fallback)

    return (
        rule(Role.LINEAR, bits),
        rule(Role.EMBEDDING, _EMBEDDING_BITS),
        rule(Role.HEAD, _HEAD_BITS),
    )


def _block_rules(form: str) -> tuple[Rule, ...]:
    head = "q8_0" if form in _HEADS_OF_8_BITS else "q6_k"
    roles = {Role.LINEAR: form, Role.EMBEDDING: form, Role.HEAD: head}
    return tuple(
        Rule(role=role, format=name, fallback=_block_fallback(name)) for role, name in roles.items()
    )


def _block_fallback(form: str) -> tuple[str, ...]:
    return (SUPER_BLOCKS[form], KEEP) if form in SUPER_BLOCKS else (KEEP,)
