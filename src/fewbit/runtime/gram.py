"""What calibration sums up of a linear layer's inputs: X^T X, and moments of each input.

X^T X (the Hessian of a layer's squared error, up to a factor) is summed in blocks of at most
`GRAM_ROWS` rows, counted from the start of each sequence: the products of a block are summed from
zero, and the sum is added to the matrix. So what comes out depends on the sequences and their order
alone, not on how they are batched, nor on the number of threads. The moments are sums in float64 in
the order of the rows, which no batching changes either.

Kernels, each with an id of its own for the record:

- `bf16/amx`: inputs are rounded to bf16, and the products, exact in float32, are summed in float32
  by AMX. The result is X'^T X' of inputs that differ from X by at most 2^-8 of each, so it is
  positive semidefinite as X^T X is, and the rounding errors of many rows average out: they deviate
  by 2^-9.2, products by 2^-8.7, and with n rows an entry (i, j) by 2^-8.7 / sqrt(n) of
  sqrt(G_ii G_jj): 1e-5 for 65,536 rows. A solver that damps with 1e-2 of the mean diagonal adds a
  thousand times that; a split of inputs into two bf16 numbers would take three times the time for
  digits that damping hides.
- `f32/avx512`, `f32/avx2`, `f32/neon`, `f32/portable`: products and sums are float32 with one
  rounding each (fused), the same bits on all four.

Float32 sums of a block lose at most 256 * 2^-24 = 1.5e-5 of the sum of magnitudes, and adding 256
of them (65,536 rows) as much again; as roundings fall, a tenth of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fewbit import _native
from fewbit._native import ThreadPool
from fewbit.errors import UsageError
from fewbit.runtime.chooser import choose_isa

GRAM_ROWS = 256
"""Rows whose products are summed before they are added to the matrix."""


def gram_kernel(isa: str | None = None) -> str:
    """Return the id of the kernel that `add_gram` uses, such as `bf16/amx`.

    Raises:
        KernelError: this CPU lacks the instruction set.
    """
    return _native.gram_kernel(choose_isa(isa))


def add_gram(
    gram: NDArray[np.float32],
    x: NDArray[np.float32],
    pool: ThreadPool,
    *,
    lengths: Sequence[int] | None = None,
    isa: str | None = None,
) -> None:
    """Add x^T x to the upper triangle of `gram`, in place; `mirror_gram` makes it whole.

    Below the diagonal it changes what lies in the same 64 x 64 elements as the diagonal, and
    nothing else. Hand in a thousand rows or more at once where you can: the matrix is read and
    written once for 1,024 of them.

    Args:
        gram: float32 [inputs, inputs].
        x: float32 [rows, inputs]; not finite values make entries that are not finite.
        pool: the threads that share the work.
        lengths: rows of each sequence in x, in order; None where x is one sequence.
        isa: an instruction set to force, one of `available_isas()`; None for the best.

    Raises:
        UsageError: arrays of another type, or shapes or lengths that do not fit.
        KernelError: this CPU lacks the instruction set.
    """
    _check_rows(x)
    _check_matrix(gram, x.shape[1])
    _native.add_gram(gram, x, _counts(x, lengths), choose_isa(isa), pool)


def add_cross(  # noqa: PLR0913
    cross: NDArray[np.float32],
    left: NDArray[np.float32],
    right: NDArray[np.float32],
    pool: ThreadPool,
    *,
    lengths: Sequence[int] | None = None,
    isa: str | None = None,
) -> None:
    """Add left^T right, of two inputs with the same rows, to `cross`, in place.

    By the kernels of `add_gram` in the same blocks, so neither batches nor threads change a bit.

    Args:
        cross: float32 [inputs of left, inputs of right].
        left: float32 [rows, inputs].
        right: float32 [rows, inputs].
        pool: the threads that share the work.
        lengths: rows of each sequence, in order; None where they are one sequence.
        isa: an instruction set to force, one of `available_isas()`; None for the best.

    Raises:
        UsageError: arrays of another type, or shapes or lengths that do not fit.
        KernelError: this CPU lacks the instruction set.
    """
    _check_rows(left)
    _check_rows(right)
    if len(left) != len(right):
        raise UsageError(
            f"The two inputs have {len(left)} and {len(right)} rows; they must be the same rows."
        )
    _check_array("cross", cross, np.dtype(np.float32), (left.shape[1], right.shape[1]))
    _native.add_cross(cross, left, right, _counts(left, lengths), choose_isa(isa), pool)


def mirror_gram(gram: NDArray[np.float32], pool: ThreadPool) -> None:
    """Copy the upper triangle of `gram`, float32 [inputs, inputs], to the lower, in place.

    Raises:
        UsageError: an array of another type or shape.
    """
    _check_matrix(gram, gram.shape[0])
    _native.mirror_gram(gram, pool)


def add_moments(  # noqa: PLR0913
    squares: NDArray[np.float64],
    absolute: NDArray[np.float64],
    largest: NDArray[np.float32],
    x: NDArray[np.float32],
    pool: ThreadPool,
    *,
    isa: str | None = None,
) -> None:
    """Add the rows of x, float32 [rows, inputs], to what is known of each input, in place.

    Args:
        squares: float64 [inputs], to which x^2 is added.
        absolute: float64 [inputs], to which |x| is added.
        largest: float32 [inputs], not negative, raised to the largest |x|; NaN stays.
        x: float32 [rows, inputs].
        pool: the threads that share the work.
        isa: an instruction set to force, one of `available_isas()`; None for the best. All give the
            same bits.

    Raises:
        UsageError: arrays of another type, or of shapes that do not fit.
        KernelError: this CPU lacks the instruction set.
    """
    _check_rows(x)
    kinds = (("squares", squares, np.float64), ("absolute", absolute, np.float64))
    for name, sums, dtype in (*kinds, ("largest", largest, np.float32)):
        _check_array(name, sums, np.dtype(dtype), (x.shape[1],))
    _native.add_moments(squares, absolute, largest, x, choose_isa(isa), pool)


def _check_rows(x: NDArray[np.float32]) -> None:
    if x.ndim != 2 or x.dtype != np.float32 or not x.flags.c_contiguous or x.shape[1] == 0:
        raise UsageError(
            f"x is {x.dtype} of shape {x.shape}; it must be contiguous float32 [rows, inputs]."
        )


def _counts(x: NDArray[np.float32], lengths: Sequence[int] | None) -> list[int]:
    counts = [len(x)] if lengths is None else list(lengths)
    if min(counts, default=0) < 0 or sum(counts) != len(x):
        raise UsageError(
            f"Sequences of {sum(counts)} rows together are named for x, which has {len(x)}; their "
            "lengths must add up to its rows."
        )
    return counts


def _check_matrix(gram: NDArray[np.float32], inputs: int) -> None:
    _check_array("gram", gram, np.dtype(np.float32), (inputs, inputs))


def _check_array(
    name: str, array: NDArray[np.floating], dtype: np.dtype, shape: tuple[int, ...]
) -> None:
    fits = array.dtype == dtype and array.shape == shape
    if not fits or not array.flags.c_contiguous or not array.flags.writeable:
        raise UsageError(
            f"{name} is {array.dtype} of shape {array.shape}; it must be writable, contiguous "
            f"{dtype} of shape {shape}."
        )
