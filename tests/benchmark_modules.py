"""Modules of benchmarks/, which lie beside the package, imported for a test and forgotten again."""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "benchmarks"


@contextmanager
def imported(names: Sequence[str]) -> Iterator[dict[str, ModuleType]]:
    """Import modules by name; those that they import themselves must be named before them."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)
