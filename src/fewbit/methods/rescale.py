"""Data-free equalization of channel ranges (Nagel et al. 2019, "Data-Free Quantization").

Where one matrix produces a channel and another consumes it, the channel is rescaled so that its row
in the first and its column in the second have the same range: s = sqrt(r_produced / r_consumed),
the optimum of the paper's product of relative precisions (equation 10). A norm counts as a diagonal
matrix: its weight is the range of the channel, which is also the one thing known about the size of
the consumers' inputs without running the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fewbit.methods.scaling import channel_largest, floored_logarithms, sound_factors


def equalize(
    produced: NDArray[np.float32],
    consumers: Sequence[NDArray[np.float32]],
    channel_of: NDArray[np.intp],
) -> NDArray[np.float32]:
    """Return factors, float32 [channels]: inputs are divided by them, columns multiplied.

    Args:
        produced: the producing matrix, [channels, its inputs]; a norm's weight with its offset as
            [channels, 1].
        consumers: the matrices that read the channels, [outputs, inputs] each.
        channel_of: [inputs], the channel of each of their inputs.
    """
    before = np.abs(produced).max(axis=1).astype(np.float64)
    columns = np.max([np.abs(weight).max(axis=0) for weight in consumers], axis=0)
    after = channel_largest(columns, channel_of)
    return sound_factors((floored_logarithms(before) - floored_logarithms(after)) / 2)
