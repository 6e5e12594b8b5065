"""Round to nearest: the scale covers the group's range, the codes are the nearest ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.registry import encode
from fewbit.formats.spec import NumberFormat, QuantTensor


def round_to_nearest(weight: NDArray[np.float32], form: NumberFormat) -> QuantTensor:
    """Encode a weight, float32 [outputs, inputs], without looking at any data.

    Raises as `formats.registry.encode`: NumericalError at values that are not finite,
    UnsupportedError where a format has no encoder, UsageError where its groups do not divide.
    """
    return encode(weight, form)
