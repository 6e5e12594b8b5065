"""fewbit: make a language model smaller and faster, and prove that it is still the same model.

The names below are imported when they are first used, so that `import fewbit` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewbit.errors import FewbitError
    from fewbit.formats.registry import decode, encode, parse_format
    from fewbit.formats.spec import Granularity, QuantSpec, QuantTensor
    from fewbit.model.runner import Runner, load
    from fewbit.sampling import SamplingParams
    from fewbit.speculate.exact import exact_accept_reject

__version__ = "0.1.0"

__all__ = [
    "FewbitError",
    "Granularity",
    "QuantSpec",
    "QuantTensor",
    "Runner",
    "SamplingParams",
    "decode",
    "encode",
    "exact_accept_reject",
    "load",
    "parse_format",
]

_HOMES = {
    "FewbitError": "errors",
    "Granularity": "formats.spec",
    "QuantSpec": "formats.spec",
    "QuantTensor": "formats.spec",
    "Runner": "model.runner",
    "SamplingParams": "sampling",
    "decode": "formats.registry",
    "encode": "formats.registry",
    "exact_accept_reject": "speculate.exact",
    "load": "model.runner",
    "parse_format": "formats.registry",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fewbit' has no attribute '{name}'")
    value = getattr(import_module(f"fewbit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
