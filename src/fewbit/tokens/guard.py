"""Turns every failure of the tokenizers library, a panic of its Rust code included, into ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fewbit.errors import FewbitError


@contextlib.contextmanager
def guarded(kind: type[FewbitError], sentence: str) -> Iterator[None]:
    """Raise `kind` with `sentence` and the cause where the library fails inside the block.

    A Rust panic reaches Python as `pyo3_runtime.PanicException`, which derives from BaseException
    and cannot be imported; it is known by its name. Interrupts pass through.
    """
    try:
        yield
    except FewbitError:
        raise
    except Exception as error:
        raise kind(f"{sentence}: {_first_line(error)}.") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise kind(f"{sentence}: {_first_line(error)}.") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300].rstrip(".")
