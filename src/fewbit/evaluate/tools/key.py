"""Questions with functions to call, and whether calls are the right ones by an answer key.

The rules are those of the Berkeley Function Calling Leaderboard's AST evaluation (Patil et al.
2025): the function's name is one that the key has; every argument is of its declared type, or of
that of an accepted value, and one of these; an argument may be left out where the key accepts ""
for it; no other argument is there; calls may come in any order. Strings are equal without regard to
case, spaces and the characters , . / - _ * ^ and with either kind of quote. A whole number passes
where the function wants any number, and 3.0 does not pass for a whole one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fewbit.evaluate.tools.forms import Call, Parsed
from fewbit.records.tools import CallOutcome

Message: TypeAlias = Mapping[str, Any]

Accepted: TypeAlias = Mapping[str, Sequence[Any]]
"""The accepted values of each argument; "" among them where it may be left out."""

OPTIONAL = ""

_IGNORED = re.compile(r"[\s,./\-_*^]")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
}


@dataclass(frozen=True)
class Expected:
    """A call that is right."""

    name: str
    accepted: Accepted

    @property
    def text(self) -> str:
        """The call with its accepted values, as one line of JSON."""
        return json.dumps({self.name: self.accepted}, ensure_ascii=False)


@dataclass(frozen=True)
class ToolItem:
    """One question, the functions that there are, and the calls that are right.

    `tools` are functions as the OpenAI API has them. No expected call: none of the functions fits.
    """

    name: str
    kind: str
    cluster: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    expected: tuple[Expected, ...]

    @property
    def offered(self) -> tuple[str, ...]:
        """The functions' names."""
        return tuple(str(tool["function"]["name"]) for tool in self.tools)

    @property
    def question(self) -> str:
        """What the user says last."""
        return str(self.messages[-1]["content"])


@dataclass(frozen=True)
class Judged:
    """What became of an item."""

    outcome: CallOutcome
    why: str = ""


RIGHT = Judged(CallOutcome.RIGHT)


def judge_calls(item: ToolItem, parsed: Parsed) -> Judged:
    """Return whether an answer's calls are those that the item's key has."""
    if parsed.fault:
        return Judged(CallOutcome.UNPARSED, parsed.fault)
    if not item.expected:
        return Judged(CallOutcome.UNASKED, _names(parsed.calls)) if parsed.calls else RIGHT
    if not parsed.calls:
        return Judged(CallOutcome.NO_CALL, "the answer calls nothing")
    wanted = Counter(_spelled(expected.name) for expected in item.expected)
    called = Counter(_spelled(call.name) for call in parsed.calls)
    if set(wanted) != set(called):
        return Judged(CallOutcome.WRONG_FUNCTION, f"it calls {_names(parsed.calls)}")
    if wanted != called:
        why = f"it makes {len(parsed.calls)} calls, and {len(item.expected)} are right"
        return Judged(CallOutcome.WRONG_NUMBER, why)
    fault = _unmatched(item, parsed.calls)
    return Judged(CallOutcome.WRONG_ARGUMENTS, fault) if fault else RIGHT


def _names(calls: Sequence[Call]) -> str:
    return ", ".join(dict.fromkeys(call.name for call in calls))[:200]


def _spelled(name: str) -> str:
    """Return a function's name as servers that allow no dots in it have it."""
    return name.replace(".", "_")


def _unmatched(item: ToolItem, calls: Sequence[Call]) -> str:
    """Return why some expected call has none of its own; empty where each has one.

    Augmenting paths (Kuhn 1955), so that no order of the calls decides.
    """
    taken: dict[int, int] = {}
    for wanted in range(len(item.expected)):
        if not _give(item, calls, wanted, taken, set()):
            expected = item.expected[wanted]
            return _argument_fault(item, _closest(calls, expected, taken), expected)
    return ""


def _give(
    item: ToolItem, calls: Sequence[Call], wanted: int, taken: dict[int, int], seen: set[int]
) -> bool:
    """Find a call for an expected one, moving others to calls that suit them too."""
    for i, call in enumerate(calls):
        if i in seen or _argument_fault(item, call, item.expected[wanted]):
            continue
        seen.add(i)
        if i not in taken or _give(item, calls, taken[i], taken, seen):
            taken[i] = wanted
            return True
    return False


def _closest(calls: Sequence[Call], expected: Expected, taken: Mapping[int, int]) -> Call:
    """Return a call that nobody has, of the right function if there is one."""
    free = [call for i, call in enumerate(calls) if i not in taken] or list(calls)
    named = [call for call in free if _spelled(call.name) == _spelled(expected.name)]
    return (named or free)[0]


def _argument_fault(item: ToolItem, call: Call, expected: Expected) -> str:
    """Return the first thing wrong with a call, empty where it is the expected one."""
    if _spelled(call.name) != _spelled(expected.name):
        return f"it calls {call.name} for {expected.name}"
    properties = _properties(item, expected.name)
    fault = _entries_fault(call.arguments, expected.accepted)
    if fault:
        return f"{expected.name}: {fault}"
    for name, value in call.arguments.items():
        wanted = properties.get(name, {}).get("type", "")
        known = {type(accepted) for accepted in _several(expected.accepted[name])}
        if not _is_of(value, wanted) and type(value) not in known:
            return f"{expected.name}: {name} is {_short(value)} and should be of type {wanted}"
    return ""


def _properties(item: ToolItem, name: str) -> Mapping[str, Any]:
    for tool in item.tools:
        if _spelled(tool["function"]["name"]) == _spelled(name):
            found: Mapping[str, Any] = tool["function"]["parameters"].get("properties", {})
            return found
    return {}


def _entries_fault(given: Mapping[str, Any], accepted: Accepted) -> str:
    for name in given:
        if name not in accepted:
            return f"there is no argument {name[:60]} in the key"
    for name, values in accepted.items():
        several = _several(values)
        if name not in given:
            if OPTIONAL not in several:
                return f"{name} is missing"
        elif not any(_equal(given[name], value) for value in several):
            return f"{name} is {_short(given[name])}"
    return ""


def _several(values: Any) -> Sequence[Any]:
    """Return accepted values, of which keys give a single one without a list now and then."""
    return values if isinstance(values, list | tuple) else [values]


def _equal(given: Any, accepted: Any) -> bool:
    if isinstance(given, str) and isinstance(accepted, str):
        return _plain(given) == _plain(accepted)
    if isinstance(given, bool) or isinstance(accepted, bool):
        return given is accepted
    if isinstance(given, list | tuple) and isinstance(accepted, list | tuple):
        return len(given) == len(accepted) and all(map(_equal, given, accepted))
    if isinstance(given, dict) and isinstance(accepted, dict):
        return not _entries_fault(given, accepted)
    return bool(given == accepted)


def _plain(text: str) -> str:
    return _IGNORED.sub("", text.lower().replace("'", '"'))


def _is_of(value: Any, wanted: Any) -> bool:
    """Return whether a value is of a JSON schema's type; of an unknown one everything is."""
    kinds = _TYPES.get(wanted) if isinstance(wanted, str) else None
    if kinds is None:
        return True
    return isinstance(value, kinds) and (wanted == "boolean" or not isinstance(value, bool))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
