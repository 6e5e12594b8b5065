"""Codes of 8 bits as two halves, of which a draft reads the upper one.

A signed code c of -128 to 127 is 16 h + l with h = floor(c / 16), -8 to 7, and l from 0 to 15. Who
knows h alone takes the middle of what c may be, 16 h + 7.5: off by 4.6 where l is uniform, as good
as rounding to 4 bits with the scale that 8 bits have, and without a bias, which rounding down would
give every product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.blocks import Q8_0
from fewbit.formats.pack import unpack
from fewbit.formats.registry import encode, parse_format
from fewbit.formats.spec import BlockSpec, NumberFormat, QuantSpec, QuantTensor

CENTRE = np.float32(7.53125)
"""What is taken off the upper half of code + 128: 128 / 16 - 7.5 / 16."""


def has_halves(form: NumberFormat) -> bool:
    """Return whether a format has symmetric codes of 8 bits, which can be read in halves."""
    if isinstance(form, QuantSpec):
        return form.bits == 8 and form.symmetric and not form.ordered
    return isinstance(form, BlockSpec) and form.name == "q8_0"


def upper_half(tensor: QuantTensor) -> QuantTensor:
    """Return what is read of a tensor through the upper halves of its codes, as exact f32 values.

    Args:
        tensor: [outputs, inputs] in a format for which `has_halves`.
    """
    assert has_halves(tensor.spec)
    codes, scales = _split(tensor)
    values = (codes >> 4).astype(np.float32) - CENTRE
    per_input = np.repeat(scales, tensor.shape[1] // scales.shape[1], axis=1)
    shaped = values * (np.float32(16) * np.broadcast_to(per_input, tensor.shape))
    return encode(shaped, parse_format("f32"))


def _split(tensor: QuantTensor) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return code + 128, uint8 [rows, columns], and scales, float32 [rows or 1, groups]."""
    if isinstance(tensor.spec, QuantSpec):
        assert tensor.scales is not None
        return unpack(tensor.codes, 8, tensor.shape[1]), tensor.scales.astype(np.float32)
    fields = np.ascontiguousarray(tensor.codes).view(Q8_0)
    codes = fields["codes"].view(np.uint8).reshape(tensor.shape) ^ np.uint8(128)
    return codes, fields["d"].astype(np.float32)
