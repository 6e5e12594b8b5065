"""What there is to choose from: groups of matrices, the formats of each, and uniform choices.

A choice is the place of the format taken, for each group in order.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fewbit.program import Slot
from fewbit.quantization.knapsack import Option
from fewbit.recipes import SUPER_BLOCKS

GGUF_FORMATS = (
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_xs",
    "iq4_nl",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
)
"""What a GGUF file's matrices may become; the first six need rows divisible by 256."""

FOLDER_FORMATS = (
    "int2-g32-asym",
    "int3-g32",
    "int3-g32-asym",
    "int4-g64",
    "int4-g32",
    "int4-g32-asym",
    "int5-g64",
    "int5-g32",
    "int6-g64",
    "int6-g32",
    "int8-g64",
    "int8-g32",
)
"""What a folder's matrices may become."""


@dataclass(frozen=True)
class Group:
    """Matrices that get one format, and what each format would bring."""

    slots: tuple[Slot, ...]
    formats: tuple[str, ...]
    options: tuple[Option, ...]
    """One for each format: the group's bytes and its predicted divergence in nats per token."""

    def index(self, name: str) -> int | None:
        """Return the place of a format or its fallback; None where neither fits its matrices."""
        for tried in (name, SUPER_BLOCKS.get(name, name)):
            if tried in self.formats:
                return self.formats.index(tried)
        return None


def smallest(groups: Sequence[Group]) -> tuple[int, ...]:
    """Return the choice of fewest bytes."""
    return tuple(
        min(range(len(group.options)), key=lambda i: group.options[i].bytes) for group in groups
    )


def uniform_choices(groups: Sequence[Group]) -> Iterator[tuple[int, ...]]:
    """Yield every choice of one format for all layers and one for each table, with fallbacks."""
    names = dict.fromkeys(name for group in groups for name in group.formats)
    kinds = [_kind(group) for group in groups]
    for combination in itertools.product(names, repeat=len(set(kinds))):
        by_kind = dict(zip(dict.fromkeys(kinds), combination, strict=True))
        found = [group.index(by_kind[kind]) for group, kind in zip(groups, kinds, strict=True)]
        choice = tuple(index for index in found if index is not None)
        if len(choice) == len(groups):
            yield choice


def _kind(group: Group) -> str:
    return "layers" if group.slots[0].startswith("layers.") else group.slots[0]


def total_bytes(groups: Sequence[Group], choice: Sequence[int]) -> int:
    """Return the bytes of a choice."""
    return sum(group.options[i].bytes for group, i in zip(groups, choice, strict=True))


def total_cost(groups: Sequence[Group], choice: Sequence[int]) -> float:
    """Return the predicted divergence of a choice, nats per token."""
    return sum(group.options[i].cost for group, i in zip(groups, choice, strict=True))


def described(groups: Sequence[Group], choice: Sequence[int]) -> str:
    """Return a choice in words: formats of each kind with how many matrices have them."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for group, index in zip(groups, choice, strict=True):
        counts[_kind(group)][group.formats[index]] += len(group.slots)
    parts = (
        f"{kind} " + ", ".join(f"{form} x {n}" for form, n in formats.most_common())
        for kind, formats in counts.items()
    )
    return "; ".join(parts)
