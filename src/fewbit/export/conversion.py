"""A tensor in another format: its codes moved where they can be, decoded and encoded elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from fewbit.formats.distance import pieces, relative, squares
from fewbit.formats.recode import holds, keeps_codes, recode
from fewbit.formats.registry import decode, encode
from fewbit.formats.spec import NumberFormat, QuantTensor, join_rows


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
    whole = [slice(0, tensor.shape[0])]
    converted: list[QuantTensor] = []
    error = total = 0.0
    for rows in pieces(tensor.shape) if form.rows_independent else whole:
        piece = tensor.take_rows(rows)
        values = None if exact else decode(piece)
        new = recode(piece, form) if moved or values is None else encode(values, form)
        converted.append(new)
        if values is not None:
            total += squares(values)
            error += squares(decode(new) - values)
    return Converted(join_rows(converted), relative(error, total))
