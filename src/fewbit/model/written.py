"""The configuration that a model is written with, checked to give back the same Program."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

from fewbit.checkpoint.checkpoint import HuggingFaceFacts
from fewbit.errors import UnsupportedError
from fewbit.model.config import ModelConfig
from fewbit.model.decoder import build_program
from fewbit.model.huggingface import from_huggingface, to_huggingface
from fewbit.model.weights import ModelSource

QUANTIZATION = "quantization_config"


def written_config(source: ModelSource) -> dict[str, Any]:
    """Return the config.json of a model, which gives back the same model.

    A folder's own configuration is kept, less what it says of its weights' formats. A rotation
    inside the MLP is left to whoever writes those.

    Raises:
        UnsupportedError: no config.json describes the model that a GGUF file holds.
    """
    facts = source.checkpoint.facts
    if isinstance(facts, HuggingFaceFacts):
        tied = from_huggingface(facts.config).tied
        untied = {"tie_word_embeddings": False} if tied and not source.config.tied else {}
        kept = {name: value for name, value in facts.config.items() if name != QUANTIZATION}
        return {**kept, **untied}
    config = to_huggingface(source.config)
    stated = replace(source.config, mlp_rotation=0)  # which no config.json of its own has
    if not same_program(from_huggingface(config), stated):
        raise UnsupportedError(
            f"The configuration of {source.path} has no exact form as config.json; write a GGUF "
            "file instead, with rtn-q4_0 or rtn-q8_0."
        )
    return config


def same_program(config: ModelConfig, other: ModelConfig) -> bool:
    """Return whether two configurations emit one Program, its numbers as float32 holds them.

    A GGUF file holds float32 numbers and rope divisors where config.json holds decimals and the
    rule that gave them, so a frequency may be two roundings away.
    """
    ours, theirs = build_program(config).ops, build_program(other).ops
    return len(ours) == len(theirs) and all(
        type(op) is type(twin)
        and all(_same(getattr(op, f.name), getattr(twin, f.name)) for f in fields(op))
        for op, twin in zip(ours, theirs, strict=True)
    )


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, tuple) and isinstance(other, tuple):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=2.0**-22)
    return bool(value == other)
