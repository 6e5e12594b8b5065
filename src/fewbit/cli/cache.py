"""The options of the KV cache, shared by every command that runs a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from fewbit.program import CacheType

KvType = Literal["f16", "bf16", "int8", "int4"]

KV_HELP = "How keys and values are stored: f16, bf16, int8 or int4."
ROTATE_HELP = "Rotate keys before they are stored, which helps int4."

KvOption = Annotated[KvType, Parameter(name="--kv")]
RotateOption = Annotated[bool, Parameter(name="--rotate-keys", negative="")]


def cache_type(name: KvType) -> CacheType:
    """Return the type that `--kv` names."""
    from fewbit.program import CacheType

    return CacheType(name)
