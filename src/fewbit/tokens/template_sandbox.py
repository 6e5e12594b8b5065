"""The environment that chat templates run in: Jinja's immutable sandbox with a budget.

A fresh one is made for each rendering, so the budget needs no shared state; the compiled code is
shared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from types import CodeType
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Cycler, Joiner, Namespace

from fewbit.errors import TemplateError
from fewbit.tokens.template_budget import MAX_BITS, Budget
from fewbit.tokens.template_filters import (
    TEXT_METHODS,
    bounded_filters,
    bounded_tests,
    check_format,
    check_percent,
    check_text_method,
)
from fewbit.tokens.template_syntax import GenerationTag, Metering

PASSED_AS_THEY_ARE = (Macro, LoopContext, BlockReference)
"""Callables that only hand their arguments on."""

BODY_STEPS = 4
"""What entering a macro or a recursive loop costs beyond a plain call."""

RUNTIME_OBJECTS = (LoopContext, Macro, Namespace, Cycler, Joiner, Undefined, TemplateReference)

SAFE_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, TEXT_METHODS),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (list, frozenset({"copy", "count", "index"})),
    (tuple, frozenset({"count", "index", "grouper", "list"})),
    (float, frozenset({"is_integer"})),
)
"""Methods by type (a groupby's pairs are named tuples); everything else is refused."""


class RefusedError(Exception):
    """The template called `raise_exception`."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox where everything that costs is counted and every attribute is on a list."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: Budget, clock: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, LoopControlExtension],
            # Folding constants would run a template's arithmetic and filters while compiling.
            optimized=False,
            cache_size=0,
        )
        self.budget = budget
        self.filters: dict[str, Any] = dict(bounded_filters(budget))
        self.tests: dict[str, Any] = dict(bounded_tests(budget))
        self.finalize = self.output
        self.globals = {
            "range": safe_range,
            "dict": dict_of,
            "namespace": Namespace,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": raise_exception,
            "strftime_now": _Clock(clock),
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = Metering().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree  # type: ignore[no-any-return]

    def template_of(self, code: CodeType) -> Template:
        """Return compiled code as a template of this environment."""
        return Template.from_code(self, code, self.make_globals(None))

    # What the rewritten syntax calls.

    def tick(self, written: int) -> bool:
        """Count one run of a body that holds `written` characters of fixed text."""
        self.budget.step()
        self.budget.process(written)
        return True

    def weighed(self, value: Any) -> Any:
        """Count a value that is about to be compared or hashed."""
        self.budget.weigh(value)
        return value

    def concatenate(self, *parts: Any) -> str:
        """Return `a ~ b ~ ...`."""
        total = sum(self.budget.weigh(part) for part in parts)
        self.budget.process(total)
        return "".join(map(str, parts))

    def take_slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """Return `value[start:stop:step]`, or undefined as a subscript would."""
        if hasattr(value, "__len__"):
            self.budget.process(len(value))
        self.budget.step()
        return value[start:stop:step]

    @pass_context
    def output(self, _context: Context, value: Any) -> Any:
        """Count what an expression writes; needing the context keeps it from compile time."""
        self.budget.weigh(value)
        return value

    # What Jinja's sandbox asks.

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow the listed methods of plain values and what Jinja's own objects offer."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        for kind, names in SAFE_METHODS:
            if isinstance(obj, kind):
                return attr in names
        return isinstance(obj, RUNTIME_OBJECTS)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Subscript; a key with parts is counted before it is hashed or named in an error."""
        if not isinstance(argument, (str, int)):
            self.budget.weigh(argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Check the size of a result before it is made."""
        check = {"+": self._check_sum, "*": self._check_product, "%": self._check_remainder}
        check.get(operator, self._check_power)(left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Bound `str.format`, which the sandbox wraps at access."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def bounded(*arguments: Any, **named: Any) -> str:
            check_format(self.budget, value.__self__, (arguments, named))
            return inner(*arguments, **named)

        return bounded

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Count a call and what its arguments and its result weigh."""
        owner = getattr(__obj, "__self__", None)
        if owner is __self:
            return __obj(*args)
        __self.budget.step()
        if isinstance(__obj, PASSED_AS_THEY_ARE) or isinstance(owner, Extension):
            __self.budget.step(BODY_STEPS)
            return super().call(__context, __obj, *args, **kwargs)
        if __obj is Namespace and not args:
            return super().call(__context, __obj, **kwargs)
        __self._check_call(__obj, owner, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, (str, list)):
            __self.budget.process(len(result))
        return result

    def _check_call(
        self, function: Any, owner: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        # Jinja passes variables of the surrounding loop and block under these names.
        own = {name: named[name] for name in named if name not in ("_loop_vars", "_block_vars")}
        for argument in (*arguments, *own.values()):
            self.budget.weigh(argument)
        if isinstance(owner, str):
            if own and function.__name__ not in ("split", "rsplit", "splitlines"):
                raise TemplateError(f"The chat template calls {function.__name__} by keyword.")
            check_text_method(self.budget, owner, function.__name__, arguments)

    def _check_sum(self, left: Any, right: Any) -> None:
        if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            self.budget.process(len(left) + len(right))

    def _check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
            return
        for value, times in ((left, right), (right, left)):
            if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                self.budget.process(len(value) * max(times, 0))

    def _check_remainder(self, left: Any, right: Any) -> None:
        if isinstance(left, str):
            check_percent(self.budget, left, right)

    def _check_power(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int) and right > 0:
            _check_bits(left.bit_length() * right)


class _Clock:
    """`strftime_now`: the current time by a format of single directives."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock

    def __call__(self, format: str) -> str:
        if not isinstance(format, str) or len(format) > 200:
            raise TemplateError(
                "The chat template asks for a date in a format that is no short text."
            )
        for directive in re.findall(r"%(?!%)[^a-zA-Z]*[a-zA-Z]?", format.replace("%%", "")):
            if not re.fullmatch(r"%[-_0^#]?[a-zA-Z]", directive):
                raise TemplateError(f"The chat template asks for a date as {directive!r}.")
        return self._clock().strftime(format)


def dict_of(*arguments: Any, **named: Any) -> dict[Any, Any]:
    """`dict` without the class's own methods."""
    return dict(*arguments, **named)


def raise_exception(message: object) -> None:
    """End the rendering with the template's own words."""
    raise RefusedError(str(message)[:1000])


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise TemplateError(f"The chat template makes integers of more than {MAX_BITS} bits.")
