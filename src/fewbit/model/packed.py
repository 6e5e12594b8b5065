"""A model's packed weights: from the file kept beside it where that is sound, else packed anew."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from fewbit.errors import BadFileError, OutputError
from fewbit.model.weights import ModelSource
from fewbit.records.loading import PackedPlan
from fewbit.runtime.executor import Binding
from fewbit.runtime.pack import Layout, layout_of, packed_form
from fewbit.runtime.packed_file import (
    Matrices,
    packed_path,
    plan_packed,
    read_packed,
    write_packed,
)


@dataclass(frozen=True)
class KeptWeights:
    """The file of a model's packed weights, and what came of looking for it."""

    path: Path
    plan: PackedPlan
    """What the file must be, or would be."""
    matrices: Matrices = field(default_factory=dict)
    """Empty where there is no file or it cannot be used."""
    note: str = ""
    """Why a file that is there was not used, in a sentence."""

    def bound(self, binding: Binding) -> Binding:
        """Return the binding with these matrices in it."""
        return replace(binding, packed=self.matrices)


def find_kept(source: ModelSource, binding: Binding, threads: int) -> KeptWeights:
    """Look for the packed weights of a model and check them; a useless file only gives a note.

    They are the files' own, so that a source which changes some has none.
    """
    outlines = {slot: source.outline(slot) for slot in binding.kernels}
    forms = {slot: (packed_form(outline), outline.shape) for slot, outline in outlines.items()}
    kept = KeptWeights(packed_path(source.path), plan_packed(source.checkpoint.stamps(), forms))
    if source.edited or not kept.path.exists():
        return kept
    if any(layout_of(record.kernel) is Layout.NESTED for record in binding.kernels.values()):
        return replace(kept, note=f"{kept.path} is not used: its weights do not lie nested.")
    try:
        return replace(kept, matrices=read_packed(kept.path, kept.plan, threads))
    except BadFileError as error:
        return replace(
            kept,
            note=f"{error}; the weights are packed again, and --keep-packed replaces the file.",
        )


def keep(kept: KeptWeights, matrices: Matrices) -> str:
    """Write the file; return why it could not be, in a sentence, or nothing."""
    try:
        write_packed(kept.path, kept.plan, matrices)
    except OutputError as error:
        return f"The packed weights were not kept: {error}"
    return ""
