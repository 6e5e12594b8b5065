"""What it costs to turn one number format into another, before any tensor is looked at."""

from __future__ import annotations

import functools

import numpy as np

from fewbit.errors import UnsupportedError
from fewbit.export.conversion import convert
from fewbit.formats.registry import F32, encode
from fewbit.formats.spec import BlockSpec, NumberFormat, QuantSpec, is_ordered
from fewbit.keyed_random import Purpose

_ROWS = 16
_WIDEST = 2048


@functools.cache
def expected_error(form: NumberFormat, other: NumberFormat, columns: int) -> float:
    """Return ||W - W'|| / ||W|| for normal weights W in `form` and W' in `other`.

    A keyed sample of 16 rows is encoded in the first format and converted to the second, so formats
    that share a grid cost nothing. Of wide rows 2,048 columns are taken, where the groups of both
    divide that. A format without an encoder counts as float32: its own grid is unknown. The
    columns of a format that has an order of them lie in a random one.
    """
    key = np.array([0, Purpose.EXPORT], np.uint64)
    narrow = columns % _WIDEST == 0 and _divides(form) and _divides(other)
    width = _WIDEST if narrow else columns
    random = np.random.Generator(np.random.Philox(key=key))
    weights = (random.standard_normal((_ROWS, width)) * 0.02).astype(np.float32)
    if is_ordered(form):
        order = random.permutation(width).astype(np.int32)
        return convert(encode(weights, form.laid_out).in_order(order), other).relative_error
    try:
        before = encode(weights, form)
    except UnsupportedError:
        before = encode(weights, F32)
    return convert(before, other).relative_error


def _divides(form: NumberFormat) -> bool:
    """Return whether the groups of a format divide the columns of the sample."""
    if isinstance(form, QuantSpec):
        return form.group_size is None or _WIDEST % form.group_size == 0
    return not isinstance(form, BlockSpec) or _WIDEST % form.block_size == 0
