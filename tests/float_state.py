"""A floating-point state that another library in the process may leave behind."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rounding_up_and_flushing() -> Iterator[None]:
    """Set this thread to round up and to flush subnormals (x86-64: bits of MXCSR)."""
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    saved = (ctypes.c_uint8 * 64)()
    changed = (ctypes.c_uint8 * 64)()
    libm.fegetenv(saved)
    libm.fegetenv(changed)
    ctypes.cast(ctypes.byref(changed, 28), ctypes.POINTER(ctypes.c_uint32))[0] |= 0xC040
    libm.fesetenv(changed)
    try:
        yield
    finally:
        libm.fesetenv(saved)
