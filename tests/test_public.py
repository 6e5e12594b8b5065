"""What `import fewbit` shows is what `__all__` says, and nothing heavy comes with it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import fewbit


def test_all_is_what_is_visible() -> None:
    visible = {name for name in dir(fewbit) if not name.startswith("_")}
    assert visible == set(fewbit.__all__)
    assert list(fewbit.__all__) == sorted(fewbit.__all__)


def test_every_public_name_resolves_and_is_documented() -> None:
    for name in fewbit.__all__:
        assert getattr(fewbit, name).__doc__, name


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(fewbit.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == set(fewbit.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(fewbit, "nonsense")


def test_import_brings_nothing_heavy() -> None:
    code = (
        "import sys, fewbit; sys.exit(' '.join({'numpy', 'torch', 'rich'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_name_brings_what_it_does_not_need() -> None:
    """Torch is an extra; the others belong to the command line and to fetching models."""
    code = (
        "import sys, fewbit; [getattr(fewbit, name) for name in fewbit.__all__]; "
        "others = {'torch', 'rich', 'plotly', 'cyclopts', 'huggingface_hub', 'ssl', 'llguidance'}; "
        "sys.exit(' '.join(others & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
