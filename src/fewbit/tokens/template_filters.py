"""The filters, tests and text methods a chat template may use, each with its cost counted first.

The selection is what templates of models use; a template with another is refused by name.
"""

from __future__ import annotations

import functools
import json
import re
import string
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

from jinja2 import Environment, pass_environment
from jinja2.filters import FILTERS, do_format, do_indent, make_attrgetter
from jinja2.tests import TESTS

from fewbit.errors import TemplateError
from fewbit.tokens.template_budget import Budget

CONSTANT_FILTERS = (
    *("abs", "attr", "count", "d", "default", "first", "items", "last", "length", "map"),
    *("reject", "rejectattr", "select", "selectattr"),
)
"""Filters whose cost does not grow with what they filter; they look at all of their arguments."""

WHOLE_FILTERS = (
    *("batch", "capitalize", "center", "dictsort", "e", "escape", "float", "groupby", "int"),
    *(
        "list",
        "lower",
        "max",
        "min",
        "reverse",
        "round",
        "safe",
        "slice",
        "sort",
        "string",
        "title",
    ),
    *("trim", "truncate", "unique", "upper", "urlencode", "wordcount"),
)
"""Filters that look at all of their input and make about as much."""

WIDTH_FILTERS = frozenset({"batch", "center", "round", "slice"})
"""Filters with a number among their arguments that sizes their result."""

CONSTANT_TESTS = frozenset(
    {"boolean", "callable", "defined", "escaped", "false", "float", "integer", "iterable"}
    | {"mapping", "none", "number", "sameas", "sequence", "string", "true", "undefined"}
)
"""Tests of what a value is; the others compare, hash or write all that is inside it."""

NUMBER_TESTS = frozenset({"divisibleby", "even", "odd"})
"""Tests that take a remainder, which for a text would be `%` formatting."""

TEXT_METHODS = frozenset(
    {"capitalize", "casefold", "center", "count", "endswith", "find", "format", "format_map"}
    | {"index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier"}
    | {"islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join", "ljust"}
    | {"lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind"}
    | {"rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith"}
    | {"strip", "swapcase", "title", "upper", "zfill"}
)

MAX_WIDTH = 1000
"""Largest width, indentation, precision or batch that a template may ask for."""

Function = Callable[..., Any]


def bounded_filters(budget: Budget) -> dict[str, Function]:
    """Return the filters by name, bound to one budget."""
    builtin: dict[str, Any] = dict(FILTERS)
    filters = {name: _constant(builtin[name], budget) for name in CONSTANT_FILTERS}
    for name in WHOLE_FILTERS:
        filters[name] = _whole(name, builtin[name], budget)
    for function in (_format, _indent, _join, _replace, _sum, _tojson):
        filters[function.__name__[1:]] = _own(function, budget)
    return filters


def bounded_tests(budget: Budget) -> dict[str, Function]:
    """Return the tests by name, bound to one budget."""
    builtin: dict[str, Any] = dict(TESTS)
    return {
        name: _constant(test, budget) if name in CONSTANT_TESTS else _whole(name, test, budget)
        for name, test in builtin.items()
    }


def check_text_method(budget: Budget, owner: str, name: str, arguments: tuple[Any, ...]) -> None:
    """Count what a method of a text is about to make, beside its arguments.

    Raises:
        TemplateError: it would be too much.
    """
    budget.process(len(owner))
    if name in ("center", "ljust", "rjust", "zfill"):
        check_widths(arguments)
    if name == "replace" and len(arguments) >= 2:
        budget.process(_replaced_length(owner, arguments[0], arguments[1]))
    if name == "join" and arguments:
        _check_join(budget, owner, arguments[0])


def check_percent(budget: Budget, pattern: str, values: object) -> None:
    """Count what `pattern % values` is about to make; raises as `check_text_method`."""
    fields = pattern.split("%")[1:]
    for field in fields:
        width = re.match(r"[-#0 +]*([\d*]*)(?:\.([\d*]*))?", _behind_key(field))
        for part in width.groups("") if width else ():
            if "*" in part or len(part) > 3:
                raise _too_wide(f"%{field[:20]}")
    budget.process(len(pattern) + len(fields) * (budget.weigh(values) + MAX_WIDTH))


def check_format(budget: Budget, pattern: str, values: object) -> None:
    """Count what `pattern.format(...)` is about to make; raises as `check_text_method`."""
    fields = [part for part in string.Formatter().parse(pattern) if part[1] is not None]
    for _, _, spec, _ in fields:
        if spec and ("{" in spec or re.search(r"\d{4,}", spec)):
            raise _too_wide(spec)
    budget.process(len(pattern) + len(fields) * (budget.weigh(values) + MAX_WIDTH))


def check_widths(arguments: tuple[Any, ...]) -> None:
    """Refuse a number beyond MAX_WIDTH among the arguments."""
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > MAX_WIDTH:
            raise _too_wide(str(argument)[:40])


def metered(budget: Budget, items: Iterator[Any]) -> Iterator[Any]:
    """Yield the items, counting each when it is asked for."""
    for item in items:
        budget.step()
        budget.weigh(item)
        yield item


def _constant(function: Function, budget: Budget) -> Function:
    # Behind an injected context or environment, if it takes one, comes what is filtered.
    start = 2 if hasattr(function, "jinja_pass_arg") else 1

    @functools.wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        budget.step()
        for argument in (*arguments[start:], *named.values()):
            budget.weigh(argument)
        result = function(*arguments, **named)
        return metered(budget, result) if isinstance(result, GeneratorType) else result

    return counted


def _whole(name: str, function: Function, budget: Budget) -> Function:
    # An injected environment or context is of a type that weighs a constant.
    @functools.wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        budget.step()
        for argument in (*arguments, *named.values()):
            budget.weigh(argument)
        if name in WIDTH_FILTERS:
            check_widths((*arguments[1:], *named.values()))
        if name in NUMBER_TESTS and any(isinstance(argument, str) for argument in arguments):
            raise TemplateError(f"The chat template asks whether a text is {name}; use numbers.")
        result = function(*arguments, **named)
        if isinstance(result, GeneratorType):
            return metered(budget, result)
        if isinstance(result, str):
            budget.process(len(result))
        return result

    return counted


def _own(function: Function, budget: Budget) -> Function:
    @functools.wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        budget.step()
        return function(budget, *arguments, **named)

    return counted


def _format(budget: Budget, value: str, *arguments: Any, **named: Any) -> str:
    check_percent(budget, str(value), named or arguments)
    return do_format(value, *arguments, **named)


def _indent(budget: Budget, s: str, width: Any = 4, first: Any = False, blank: Any = False) -> str:  # noqa: FBT002
    check_widths((width,))
    unit = len(width) if isinstance(width, str) else MAX_WIDTH if width > 16 else 16
    lines = s.count("\n") + 1
    budget.process(len(s) + lines * unit)
    return do_indent(s, width, first, blank)


@pass_environment
def _join(
    budget: Budget, environment: Environment, value: Any, d: str = "", attribute: Any = None
) -> str:
    parts = _attributes(budget, environment, value, attribute)
    _check_join(budget, str(d), parts)
    return str(d).join(map(str, parts))


def _attributes(budget: Budget, environment: Environment, values: Any, attribute: Any) -> list[Any]:
    budget.weigh(attribute)
    if attribute is None:
        return list(values)
    return list(map(make_attrgetter(environment, attribute), values))


def _check_join(budget: Budget, separator: str, parts: Any) -> None:
    budget.weigh(parts)
    if hasattr(parts, "__len__"):
        budget.process(len(separator) * len(parts))


def _replace(budget: Budget, s: str, old: str, new: str, count: int | None = None) -> str:
    text, before, after = str(s), str(old), str(new)
    budget.process(_replaced_length(text, before, after))
    return text.replace(before, after, -1 if count is None else count)


def _replaced_length(text: Any, old: Any, new: Any) -> int:
    if not all(isinstance(part, str) for part in (text, old, new)):
        return 0
    places = text.count(old) if old else len(text) + 1
    return len(text) + places * len(new)


@pass_environment
def _sum(
    budget: Budget, environment: Environment, iterable: Any, attribute: Any = None, start: Any = 0
) -> Any:
    # Adding lists would copy the growing sum for every one of them.
    total = start
    for number in _attributes(budget, environment, iterable, attribute):
        budget.step()
        if not isinstance(number, (int, float)) or not isinstance(total, (int, float)):
            raise TemplateError(f"The chat template sums a {type(number).__name__}; use numbers.")
        total += number
    return total


def _tojson(  # noqa: PLR0913, PLR0917 - the signature that templates know
    budget: Budget,
    x: Any,
    ensure_ascii: Any = False,  # noqa: FBT002
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,  # noqa: FBT002
) -> str:
    """Write JSON as transformers does: no HTML escapes, non-ASCII letters kept."""
    weight = budget.weigh(x)
    budget.weigh(separators)
    # Every separator, indentation and escape is counted by its largest case before any is written.
    width = len(indent) if isinstance(indent, str) else int(indent or 0)
    if width > 16 or (separators and max(map(len, separators)) > 16):
        raise _too_wide("tojson")
    budget.check_size(weight)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    text = []
    for piece in encoder.iterencode(x):
        budget.process(len(piece))
        text.append(piece)
    return "".join(text)


def _behind_key(field: str) -> str:
    """Return what follows the parenthesized key of a conversion, if there is one."""
    if not field.startswith("("):
        return field
    depth = 0
    for index, character in enumerate(field):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return field[index + 1 :]
    return ""


def _too_wide(what: str) -> TemplateError:
    return TemplateError(
        f"The chat template asks for a width or count beyond {MAX_WIDTH:,} ({what!r})."
    )
