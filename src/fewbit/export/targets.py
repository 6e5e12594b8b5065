"""The targets by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fewbit.errors import UsageError
from fewbit.export.awq import awq
from fewbit.export.compressed_tensors import compressed_tensors
from fewbit.export.gguf import gguf
from fewbit.export.gptq import gptq, gptq_v2
from fewbit.export.hf import hf
from fewbit.export.target import ExportSettings, Target
from fewbit.export.torchao import torchao

TARGETS: Mapping[str, Callable[[ExportSettings], Target]] = MappingProxyType(
    {
        "gguf": gguf,
        "hf": hf,
        "compressed-tensors": compressed_tensors,
        "gptq": gptq,
        "gptq_v2": gptq_v2,
        "awq": awq,
        "torchao": torchao,
    }
)
"""What makes each target from the user's settings; it refuses those that it does not have."""


def find_target(name: str, settings: ExportSettings) -> Target:
    """Return a target.

    Raises:
        UsageError: there is none of that name, or it does not have a setting.
    """
    if name not in TARGETS:
        raise UsageError(f"--to is '{name}'; there are {', '.join(TARGETS)}.")
    return TARGETS[name](settings)
