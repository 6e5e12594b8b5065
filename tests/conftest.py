"""Which test files are read where torch is not installed; `make test-interop` reads all."""

import importlib.util

collect_ignore_glob = (
    []
    if importlib.util.find_spec("torch")
    else ["test_torch_*.py", "test_tuning*.py", "test_api_torch*.py"]
)
"""They import torch at their beginning, and every test in them is marked interop."""
