"""The `quantization_config` of compressed-tensors: which modules are packed, and how.

Fields and defaults are those of `QuantizationConfig` and `QuantizationArgs` of the package
compressed-tensors 0.20.1; fields that do not change what is stored are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from fewbit.checkpoint.name_patterns import name_pattern
from fewbit.checkpoint.packed_folder import stated_config
from fewbit.errors import BadFileError, UnsupportedError

METHOD = "compressed-tensors"
REGULAR = "re:"
"""What stands before a target that is a regular expression."""

Strategy = Literal["tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"]


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of tensor is quantized."""

    num_bits: int = 8
    type: Literal["int", "float"] = "int"
    symmetric: bool = True
    group_size: int | None = None
    strategy: Strategy | None = None
    block_structure: tuple[int, int] | None = None
    dynamic: bool | Literal["local"] = False

    @property
    def scope(self) -> str:
        """The strategy, inferred from the group size where it is left out."""
        if self.strategy is not None:
            return self.strategy
        if self.group_size is None:
            return "tensor"
        return "group" if self.group_size > 0 else "channel"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Modules that are quantized alike."""

    targets: tuple[str, ...]
    weights: Arguments | None = None
    input_activations: Arguments | None = None
    output_activations: Arguments | None = None
    format: str | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    config_groups: dict[str, Group] = {}
    format: str | None = None
    kv_cache_scheme: Arguments | None = None
    ignore: tuple[str, ...] | None = None
    transform_config: dict[str, Any] | None = None
    sparsity_config: dict[str, Any] | None = None


class Targets:
    """Finds the group of a module, as the package and vLLM do: by name first, then by class.

    Raises:
        UnsupportedError: a target is a pattern that could run for ever.
    """

    def __init__(self, config: Config, owner: str) -> None:
        self._owner = owner
        targets = [(target, g) for g in config.config_groups.values() for target in g.targets]
        self._named = [(_matcher(target, owner), group) for target, group in targets]
        self._classes = dict(reversed([(t, g) for t, g in targets if not t.startswith(REGULAR)]))

    def of(self, module: str) -> Group:
        """Return the group of a module; raises BadFileError where none targets it."""
        for matches, group in self._named:
            if matches(module):
                return group
        kind = "Embedding" if module.endswith("embed_tokens") else "Linear"
        if kind in self._classes:
            return self._classes[kind]
        raise BadFileError(
            f"{self._owner} has no config group for {module[:80]!a}, whose weight is packed; "
            "one of them belongs to another model, get both again."
        )


def read_config(stated: Mapping[str, Any], owner: str) -> Config:
    """Read a `quantization_config`.

    Raises:
        BadFileError: a field has another type than it must.
        UnsupportedError: weights are sparse, or meant for rotated activations.
    """
    config = stated_config(stated, Config, METHOD, owner)
    _refuse_sparsity(config, owner)
    if config.transform_config and config.transform_config.get("config_groups"):
        raise UnsupportedError(
            f"{owner} asks for transforms of activations while the model runs (transform_config), "
            "which are not supported; take a checkpoint without them."
        )
    return config


def _refuse_sparsity(config: Config, owner: str) -> None:
    sparse = config.sparsity_config or {}
    form = sparse.get("format", "dense")
    if form != "dense" or config.format == "marlin-24":
        shown = config.format if form == "dense" else form
        raise UnsupportedError(
            f"{owner} says that weights are stored sparse ({str(shown)[:40]}); supported are dense "
            "ones."
        )


def _matcher(target: str, owner: str) -> Any:
    if target.startswith(REGULAR):
        return name_pattern(target.removeprefix(REGULAR), owner).match
    return target.__eq__


def is_named(module: str, targets: Sequence[str], owner: str) -> bool:
    """Return whether a list of names and patterns, such as `ignore`, names a module."""
    return any(_matcher(target, owner)(module) for target in targets)
