"""The native core's functions as Python sees them; their users document them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

class PackedMatrix:
    def __init__(
        self,
        source: str,
        columns: int,
        codes: NDArray[np.uint8],
        bits: int = 0,
        group: int = 0,
        scales: NDArray[np.uint16] | None = None,
        zeros: NDArray[np.uint8] | None = None,
        threads: int = 1,
    ) -> None: ...
    def decode_row(self, row: int) -> NDArray[np.float32]: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

def available_isas() -> list[str]: ...
def packed_bytes(
    source: str, rows: int, columns: int, bits: int, group: int, asymmetric: bool
) -> int: ...
def multiply(
    packed: PackedMatrix,
    x: NDArray[np.float32],
    bias: NDArray[np.float32] | None,
    isa: str,
    tiles_at_once: int = 0,
    rows_at_once: int = 0,
) -> NDArray[np.float32]: ...
def simd_read(isa: str, x: NDArray[np.uint8]) -> int: ...
def time_multiply(
    packed: PackedMatrix, x: NDArray[np.float32], isa: str, repeats: int
) -> float: ...
def quantize_activations(
    x: NDArray[np.float32], isa: str
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]: ...

class TokenSampler:
    def __init__(
        self,
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        frequency_penalty: float,
        presence_penalty: float,
        biased: Sequence[int],
        bias: Sequence[float],
        seed: int,
        sample: int,
    ) -> None: ...
    def remember(self, tokens: Sequence[int], *, generated: bool) -> None: ...
    def probabilities(
        self, logits: NDArray[np.float32], vocabulary: int, isa: str | None = None
    ) -> tuple[NDArray[np.float64], str, int]: ...

def sample_blocks(
    logits: NDArray[np.float32],
    vocabulary: int,
    samplers: Sequence[TokenSampler],
    rows: Sequence[int],
    positions: Sequence[int],
    drafts: Sequence[Sequence[int]],
    top_logprobs: Sequence[int],
) -> list[tuple[list[int], list[tuple[float, float, list[int], list[float]]], str, int, int]]: ...
def keyed_uniform(seed: int, sample: int, position: int, purpose: int) -> float: ...
