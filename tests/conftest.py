"""Which test files are read where torch is not installed; `make test-interop` reads all."""

import importlib.util

import pytest

collect_ignore_glob = (
    []
    if importlib.util.find_spec("torch")
    else ["test_torch_*.py", "test_tuning*.py", "test_api_torch*.py"]
)
"""They import torch at their beginning, and every test in them is marked interop."""


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Keep what commands put into the cache apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWBIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
