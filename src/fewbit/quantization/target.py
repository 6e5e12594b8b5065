"""How many bytes a model may take: `90MB`, `86MiB`, or bits per weight."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from fewbit.checkpoint.checkpoint import GgufFacts
from fewbit.checkpoint.gguf_write import header_bytes
from fewbit.errors import UsageError
from fewbit.model.weights import ModelSource
from fewbit.quantization.planned import Container, QuantizationPlan
from fewbit.records.figures import size

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kMG]i?B|B)?\s*")
_BITS = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:bpw|bits)\s*")
_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "kiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_MOST_BYTES = 1 << 60


@dataclass(frozen=True)
class SizeTarget:
    """Bytes that an artefact may take: a GGUF file with its header, of a folder all tensors."""

    bytes: int
    text: str
    """As the user wrote it, for names."""


@dataclass(frozen=True)
class BitsTarget:
    """Bits of all tensors over all weights, in either container."""

    bits: float

    @property
    def text(self) -> str:
        """For names."""
        return f"{self.bits:g}bpw"


Target = SizeTarget | BitsTarget


@dataclass(frozen=True)
class Budget:
    """A target as bytes of tensors."""

    target: int
    """As it was asked for, in bytes."""
    counts: Literal["file", "tensors"]
    """What the target counts."""
    overhead: int
    """Bytes of the target that are no tensor's."""

    @property
    def tensors(self) -> int:
        """Bytes that all tensors together may take."""
        return self.target - self.overhead


def parse_size(text: str) -> SizeTarget:
    """Return the target of a size such as `90MB` (10^6 bytes), `86 MiB` (2^20) or `90000000`.

    Raises:
        UsageError: it is none.
    """
    match = _SIZE.fullmatch(text)
    count = 0.0 if match is None else float(match[1]) * _UNITS[match[2] or "B"]
    if not 1 <= count < _MOST_BYTES:
        raise UsageError(
            f"'{text[:40]}' is no size; write a number with kB, MB, GB, kiB, MiB or "
            "GiB, 90MB for example."
        )
    return SizeTarget(int(count), text.replace(" ", ""))


def parse_budget(text: str) -> Target:
    """Return the target of bits per weight, as `4.5bpw`, or of a size, as `90MB`.

    Raises:
        UsageError: it is neither.
    """
    match = _BITS.fullmatch(text)
    if match is not None:
        return parse_bits(float(match[1]))
    try:
        return parse_size(text)
    except UsageError:
        raise UsageError(
            f"'{text}' is no budget; write bits per weight, 4.5bpw for example, or a size with "
            "kB, MB, GB, kiB, MiB or GiB, 90MB for example."
        ) from None


def parse_bits(bits: float) -> BitsTarget:
    """Return the target of so many bits per weight.

    Raises:
        UsageError: not above 0, or more than 32.
    """
    if not 0 < bits <= 32:
        raise UsageError(f"The target is {bits} bits per weight; give a number from 1 to 32.")
    return BitsTarget(bits)


def require_less(target: Target, source: ModelSource) -> None:
    """Refuse, before anything is measured, a target that a model meets as it is; raises UsageError.

    Of a file its size counts, of a folder its tensors.
    """
    checkpoint = source.checkpoint
    infos = checkpoint.tensors.values()
    held = sum(info.nbytes for info in infos)
    if isinstance(target, BitsTarget):
        asked = int(target.bits * sum(math.prod(info.shape) for info in infos) / 8)
    else:
        asked = target.bytes
        if isinstance(checkpoint.facts, GgufFacts):
            held = sum(stamp.size for stamp in checkpoint.stamps())
    if held <= asked:
        raise UsageError(
            f"The target {target.text} is {size(asked)}, and {source.path} takes {size(held)} "
            "as it is; ask for less."
        )


def budget_of(target: Target, planned: QuantizationPlan) -> Budget:
    """Return a target as bytes of tensors, given any plan for the same source and container.

    A GGUF file's header has the source's metadata, so its bytes are known but for the padding
    between tensors, of which as much is set aside as there can be.
    """
    if isinstance(target, BitsTarget):
        weights = sum(t.weights for t in planned.tensors if t.status != "absent")
        return Budget(int(target.bits * weights / 8), "tensors", 0)
    if planned.container is Container.FEWBIT:
        return Budget(target.bytes, "tensors", 0)
    facts = planned.source.checkpoint.facts
    assert isinstance(facts, GgufFacts)
    infos = list(planned.source.checkpoint.tensors.values())
    return Budget(target.bytes, "file", header_bytes(facts, infos))
