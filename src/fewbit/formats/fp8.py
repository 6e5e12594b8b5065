"""FP8: e4m3 codes times a float32 scale of the row or of the tensor, x' = s e4m3(code).

E4M3 is that of the OCP 8-bit floating point specification 1.0 (e4m3fn): 1 sign, 4 exponent and 3
mantissa bits, bias 7, largest value 448, no infinities, NaN at 0x7f and 0xff. Codes are rounded to
the nearest, ties to the even one, and saturate at 448. NaN codes are refused where they are read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError
from fewbit.formats.spec import Fp8Spec, Granularity, QuantTensor

LARGEST = np.float32(448)
"""0x7e."""
NAN = 0x7F
"""Under the sign bit."""
_LEAST_EXPONENT = -6
"""Of a normal number; below, eight steps of 2^-9 reach zero."""


def encode(x: NDArray[np.float32], spec: Fp8Spec) -> QuantTensor:
    """Encode a finite matrix, float32 [rows, columns], with scales that put absmax on 448.

    Codes are computed with the scale as stored. A row or tensor of zeros has the scale 0; no other
    scale is below the smallest normal float32.
    """
    largest = np.abs(x).max(axis=1 if spec.granularity is Granularity.ROW else None, keepdims=True)
    scales = np.maximum(largest / LARGEST, np.finfo(np.float32).tiny)
    scales[largest == 0] = 0
    scaled = np.divide(x, scales, out=np.zeros_like(x), where=scales != 0)
    return QuantTensor(spec, (x.shape[0], x.shape[1]), encode_e4m3(scaled), scales)


def decode(tensor: QuantTensor) -> NDArray[np.float32]:
    """Return s e4m3(code), float32 [rows, columns]; the product is rounded once.

    Raises:
        NumericalError: a code is NaN.
    """
    assert tensor.scales is not None
    require_numbers(tensor)
    return VALUES[tensor.codes] * tensor.scales


def encode_e4m3(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the nearest code of each finite value, ties to even, saturating at 448."""
    magnitude = np.minimum(np.abs(x), LARGEST)
    # frexp: magnitude in [2^(exponent - 1), 2^exponent), but exponent 0 for zero.
    exponent = np.frexp(np.maximum(magnitude, np.float32(2.0**_LEAST_EXPONENT)))[1]
    power = exponent - 1
    # In units of 2^(power - 3): 8 to 16, where 16 is the next power's 8; less when subnormal.
    steps = np.rint(np.ldexp(magnitude, 3 - power)).astype(np.int32)
    negative = np.where(np.signbit(x), 128, 0)
    codes: NDArray[np.uint8] = (8 * (power - _LEAST_EXPONENT) + steps + negative).astype(np.uint8)
    return codes


def require_numbers(tensor: QuantTensor) -> None:
    """Raise NumericalError at the first code that is NaN."""
    bad = (tensor.codes & np.uint8(0x7F)) == NAN
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise NumericalError(
            f"The {tensor.spec.name} code at row {row}, column {column} is NaN "
            f"(0x{tensor.codes[row, column]:02x}); the weights are damaged, fetch or quantize them "
            "again."
        )


def _values() -> NDArray[np.float32]:
    codes = np.arange(256, dtype=np.int32)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).astype(np.float32)
    normal = np.ldexp(mantissa + 8, exponent - 10)
    magnitude = np.where(exponent == 0, np.ldexp(mantissa, -9), normal).astype(np.float32)
    magnitude[(codes & 0x7F) == NAN] = np.nan
    return np.where(codes < 128, magnitude, -magnitude)


VALUES = _values()
"""The value of each code, float32 [256]."""
VALUES.flags.writeable = False
