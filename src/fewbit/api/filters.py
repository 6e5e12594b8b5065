"""Which layers a filter chooses, and what to say where it chooses none."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any, TypeAlias

from fewbit.errors import UsageError

Filter: TypeAlias = Callable[[Any, str], bool]
"""Given a module and its name, whether the module is to be quantized."""

_MOST_SHOWN = 3


def require_filter(filter_fn: object) -> None:
    """Refuse what cannot be called; raises UsageError."""
    if not callable(filter_fn):
        raise UsageError(
            f"filter_fn is of type {type(filter_fn).__name__}; give a function of a module and its "
            "name that returns whether to quantize it."
        )


def require_some(chosen: Iterable[str], layers: Iterable[str], filter_fn: Filter | None) -> None:
    """Refuse to quantize nothing.

    Args:
        chosen: names that the filter chose.
        layers: names of all layers that could have been.
        filter_fn: the filter; None for the default one.

    Raises:
        UsageError: nothing was chosen; the message names the filter and near matches.
    """
    if next(iter(chosen), None) is not None:
        return
    names = list(layers)
    if not names:
        raise UsageError("The model has no linear layer that is not quantized yet.")
    if filter_fn is None:
        raise UsageError("No layer was chosen.")
    near = near_matches(filter_fn, names)
    offer = f"did you mean {' or '.join(near)}?" if near else f"one is called {names[0]}."
    raise UsageError(
        f"The filter {filter_name(filter_fn)} chose none of the {len(names)} linear layers; {offer}"
    )


def filter_name(filter_fn: Filter) -> str:
    """Return what a user would know a filter by: its name, and where a nameless one stands."""
    inner = _function(filter_fn)
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__name__)
    if not isinstance(code, CodeType) or "<lambda>" not in name:
        return f"'{name}'"
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"'lambda' of {file}, line {code.co_firstlineno}"


def near_matches(filter_fn: Filter, names: Iterable[str]) -> list[str]:
    """Return layers, or parts of their names, that resemble a string that the filter looks for."""
    parts = {part: name for name in names for part in (name, *name.split("."))}
    found: dict[str, None] = {}
    for text in _strings(filter_fn):
        for near in difflib.get_close_matches(text.strip("."), parts, _MOST_SHOWN):
            if near != text:
                found[near] = None
    return list(found)[:_MOST_SHOWN]


def _strings(filter_fn: Filter) -> list[str]:
    """Return the strings in a function: those written in it, its defaults, and what it closes over.

    Of a `functools.partial` also its arguments, and of an object what it holds.
    """
    inner = _function(filter_fn)
    values: list[object] = list(getattr(getattr(inner, "__code__", None), "co_consts", ()))
    values += getattr(inner, "__defaults__", None) or ()
    values += (getattr(filter_fn, "keywords", None) or {}).values()
    values += getattr(filter_fn, "args", ())
    values += getattr(filter_fn, "__dict__", {}).values()
    values += [cell.cell_contents for cell in getattr(inner, "__closure__", None) or ()]
    flat = [item for value in values for item in _items(value)]
    return [item for item in flat if isinstance(item, str) and item]


def _function(filter_fn: Filter) -> Any:
    """Return the function of a `functools.partial` or a bound method; others as they are."""
    return getattr(filter_fn, "func", getattr(filter_fn, "__func__", filter_fn))


def _items(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.keys()
    return value if isinstance(value, list | tuple | set | frozenset) else (value,)
