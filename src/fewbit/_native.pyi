"""The native core's functions as Python sees them; their users document them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
        self, logits: NDArray[np.float32], vocabulary: int
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
