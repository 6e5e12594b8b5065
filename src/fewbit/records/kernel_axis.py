"""What the axis of kernels has to tell beside its findings."""

from __future__ import annotations

from fewbit.records.base import Record


class KernelKind(Record, frozen=True, kw_only=True):
    """The matrices of an arm that are stored and run alike."""

    arm: str
    """`source` or `candidate`."""
    format: str
    """As stored."""
    kernel: str
    activations: str
    matrices: int
    bytes: int
    """As the kernel reads them."""
    format_bytes: int
    """As the format has them, rows filled up to whole tiles of 16."""
    note: str = ""
    """What differs from the stored format, in words."""


class TokenReads(Record, frozen=True, kw_only=True):
    """The bytes of weights that a token reads in decoding."""

    arm: str
    bytes: int
    """As the kernels read them."""
    format_bytes: int
    """As the formats have them, rows filled up to whole tiles of 16."""


class MatrixKernel(Record, frozen=True, kw_only=True):
    """What ran one matrix of the candidate."""

    slot: str
    format: str
    kernel: str
    bytes: int
    format_bytes: int


class KernelsDetails(Record, frozen=True, kw_only=True, tag="kernels"):
    """Which kernels ran, and what they read."""

    kinds: tuple[KernelKind, ...]
    reads: tuple[TokenReads, ...]
    matrices: tuple[MatrixKernel, ...]
    """In order of first use."""
