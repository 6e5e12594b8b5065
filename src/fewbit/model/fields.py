"""Checked access to the fields of a configuration that a stranger wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from fewbit.errors import BadFileError, MissingError

DefaultT = TypeVar("DefaultT")

_REQUIRED = object()
_ADVICE = "the configuration is damaged or hostile, fetch the model again"


@dataclass(frozen=True)
class Fields:
    """A mapping of configuration values, read one checked field at a time.

    `owner` names the mapping in errors, such as `config.json`. A field whose value is None counts
    as absent, as it does in Hugging Face configurations. Every reader raises `MissingError` for an
    absent field without a default and `BadFileError` for a value of another type or out of range.
    """

    values: Mapping[str, Any]
    owner: str
    prefix: str = ""
    """Stands before every name, as `llama.` does in GGUF metadata."""

    def has(self, name: str) -> bool:
        """Return whether the field is there and not None."""
        return self.values.get(self.prefix + name) is not None

    def raw(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return the value as it stands."""
        value = self.values.get(self.prefix + name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise MissingError(f"{self.owner} has no '{self.prefix}{name}'; {_ADVICE}.")
        return default

    @overload
    def integer(self, name: str, low: int, high: int) -> int: ...

    @overload
    def integer(self, name: str, low: int, high: int, default: DefaultT) -> int | DefaultT: ...

    def integer(self, name: str, low: int, high: int, default: Any = _REQUIRED) -> Any:
        """Return an integer in [low, high]; the default is returned unchecked."""
        value = self.raw(name, default)
        if value is default:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(name, value, f"expected an integer from {low} to {high}")
        return value

    @overload
    def number(self, name: str, low: float, high: float) -> float: ...

    @overload
    def number(self, name: str, low: float, high: float, default: DefaultT) -> float | DefaultT: ...

    def number(self, name: str, low: float, high: float, default: Any = _REQUIRED) -> Any:
        """Return a number in [low, high], which NaN is not; the default is returned unchecked."""
        value = self.raw(name, default)
        if value is default:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(name, value, "expected a number")
        if not low <= value <= high:
            raise self.refuse(name, value, f"expected a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        """Return a boolean."""
        value = self.raw(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, value, "expected true or false")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """Return a string."""
        value = self.raw(name, default)
        if not isinstance(value, str):
            raise self.refuse(name, value, "expected a string")
        return value

    def part(self, name: str) -> Fields:
        """Return the fields of a nested mapping."""
        value = self.raw(name)
        if not isinstance(value, Mapping):
            raise self.refuse(name, value, "expected a mapping")
        return Fields(value, f"{self.owner}: {name}")

    def refuse(self, name: str, value: Any, expected: str) -> BadFileError:
        """Return the error that refuses a value."""
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return BadFileError(f"{self.owner}: {self.prefix}{name} is {shown}; {expected}: {_ADVICE}.")
