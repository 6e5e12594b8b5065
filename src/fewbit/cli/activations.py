"""The option of how layers round their inputs, shared by every command that runs a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from fewbit.records.kernels import Activations

ACTIVATIONS_HELP = "How layers with integer weights round their inputs; as the model says."

Rounding = Literal["int8", "int8-token", "int8-static", "bf16"]

ActivationsOption = Annotated[Rounding | None, Parameter(name="--activations")]


def rounding(name: Rounding | None) -> Activations | None:
    """Return the rounding that `--activations` names."""
    from fewbit.records.kernels import Activations

    return None if name is None else Activations(name)
