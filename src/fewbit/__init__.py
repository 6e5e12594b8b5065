"""fewbit: make a language model smaller and faster, and prove that it is still the same model.

The names below are imported when they are first used, so that `import fewbit` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewbit.api.artefact import Artefact, quantize
    from fewbit.api.configs import (
        Float8WeightOnlyConfig,
        Int4WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        PerGroup,
        PerRow,
        PerTensor,
    )
    from fewbit.api.in_place import quantize_
    from fewbit.api.model import Model, load
    from fewbit.api.serving import Generated, TextStream
    from fewbit.api.tensors import decode, encode
    from fewbit.calibrate.mix import CalibrationSettings, Ingredient
    from fewbit.errors import FewbitError
    from fewbit.formats.registry import parse_format
    from fewbit.formats.spec import Granularity, QuantSpec, QuantTensor
    from fewbit.model.runner import Runner, RunSettings
    from fewbit.program import CacheType
    from fewbit.records.kernels import Activations
    from fewbit.records.recipe import Recipe
    from fewbit.sampling import SamplingParams
    from fewbit.speculate.exact import exact_accept_reject
    from fewbit.tokens.grammar import Grammar, GrammarKind

__version__ = "0.1.0"

__all__ = [
    "Activations",
    "Artefact",
    "CacheType",
    "CalibrationSettings",
    "FewbitError",
    "Float8WeightOnlyConfig",
    "Generated",
    "Grammar",
    "GrammarKind",
    "Granularity",
    "Ingredient",
    "Int4WeightOnlyConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Int8WeightOnlyConfig",
    "Model",
    "PerGroup",
    "PerRow",
    "PerTensor",
    "QuantSpec",
    "QuantTensor",
    "Recipe",
    "RunSettings",
    "Runner",
    "SamplingParams",
    "TextStream",
    "decode",
    "encode",
    "exact_accept_reject",
    "load",
    "parse_format",
    "quantize",
    "quantize_",
]

_HOMES = {
    "Activations": "records.kernels",
    "Artefact": "api.artefact",
    "CacheType": "program",
    "CalibrationSettings": "calibrate.mix",
    "FewbitError": "errors",
    "Float8WeightOnlyConfig": "api.configs",
    "Generated": "api.serving",
    "Grammar": "tokens.grammar",
    "GrammarKind": "tokens.grammar",
    "Granularity": "formats.spec",
    "Ingredient": "calibrate.mix",
    "Int4WeightOnlyConfig": "api.configs",
    "Int8DynamicActivationInt8WeightConfig": "api.configs",
    "Int8WeightOnlyConfig": "api.configs",
    "Model": "api.model",
    "PerGroup": "api.configs",
    "PerRow": "api.configs",
    "PerTensor": "api.configs",
    "QuantSpec": "formats.spec",
    "QuantTensor": "formats.spec",
    "Recipe": "records.recipe",
    "RunSettings": "model.runner",
    "Runner": "model.runner",
    "SamplingParams": "sampling",
    "TextStream": "api.serving",
    "decode": "api.tensors",
    "encode": "api.tensors",
    "exact_accept_reject": "speculate.exact",
    "load": "api.model",
    "parse_format": "formats.registry",
    "quantize": "api.artefact",
    "quantize_": "api.in_place",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fewbit' has no attribute '{name}'")
    value = getattr(import_module(f"fewbit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
