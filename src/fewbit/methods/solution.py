"""What a solver gives back."""

from __future__ import annotations

from dataclasses import dataclass

from fewbit.formats.spec import QuantTensor


@dataclass(frozen=True, eq=False)
class Solution:
    """A matrix in its new format, and what the user has to know about how it was found."""

    tensor: QuantTensor
    remarks: tuple[str, ...] = ()
    """Sentences for the manifest and the screen: damping that was raised, columns that were never
    activated, statistics that were missing. Empty where everything went as the method has it."""
    damping: float | None = None
    """What was added to the diagonal of the inputs' Gram matrix, as a part of its mean; None where
    the method has none."""
