"""A tensor in another format: its codes moved where they can be, decoded and encoded elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fewbit.formats.distance import squares
from fewbit.formats.recode import holds, keeps_codes, recode
from fewbit.formats.registry import decode, encode
from fewbit.formats.spec import NumberFormat, QuantTensor, join_rows

_PIECE = 1 << 21
"""Elements converted at once: 8 MiB of float32."""


@dataclass(frozen=True)
class Converted:
    """A tensor in its new format, and what that cost."""

    tensor: QuantTensor
    relative_error: float
    """||W - W'|| / ||W||, Frobenius norms, W as decoded before; ||W'|| where W is zero."""


def convert(tensor: QuantTensor, form: NumberFormat) -> Converted:
    """Return a tensor in another format; codes are kept where the format has them.

    Args:
        tensor: [rows, columns].
        form: whose groups divide the columns.

    Raises:
        NumericalError: a value or a scale is beyond the format's range, or not finite.
        UnsupportedError: there is no decoder of the one format or no encoder of the other.
    """
    columns = tensor.shape[1]
    if tensor.spec == form:
        return Converted(tensor, 0.0)
    moved = keeps_codes(form, tensor.spec, columns)
    exact = holds(form, tensor.spec, columns)
    step = max(1, _PIECE // columns) if form.rows_independent else tensor.shape[0]
    pieces: list[QuantTensor] = []
    error = total = 0.0
    for start in range(0, tensor.shape[0], step):
        piece = tensor.take_rows(slice(start, start + step))
        values = None if exact else decode(piece)
        new = recode(piece, form) if moved or values is None else encode(values, form)
        pieces.append(new)
        if values is not None:
            total += squares(values)
            error += squares(decode(new) - values)
    return Converted(join_rows(pieces), math.sqrt(error / total if total else error))
