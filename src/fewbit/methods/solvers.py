"""The solvers by the name that recipes use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.spec import NumberFormat, QuantTensor
from fewbit.methods.clip import search_range
from fewbit.methods.rtn import round_to_nearest

Solver: TypeAlias = Callable[[NDArray[np.float32], NumberFormat], QuantTensor]
"""A weight, float32 [outputs, inputs], and a format -> the weight in that format."""

SOLVERS: Mapping[str, Solver] = MappingProxyType({"rtn": round_to_nearest, "mse": search_range})
"""`rtn`: round to nearest over the whole range; `mse`: over the range of least squared error."""
