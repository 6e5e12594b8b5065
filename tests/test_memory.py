"""Memory counted before a model is loaded, and what the system has left."""

import pytest
from tiny_models import CONFIGS, random_weights, write_huggingface

import fewbit.model.memory
from fewbit.errors import UsageError
from fewbit.model.decoder import build_program
from fewbit.model.memory import workspace_bound
from fewbit.model.runner import RunSettings, load, runner_of
from fewbit.model.weights import open_model
from fewbit.runtime.memory import Available, available_memory


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    weights = random_weights(CONFIGS["gemma3"])
    return write_huggingface(tmp_path_factory.mktemp("gemma3"), CONFIGS["gemma3"], weights)


def place(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\n"}


def test_linux_says_what_is_available(tmp_path):
    found = available_memory(place(tmp_path, MEMINFO))
    assert found == Available(800 << 10, "available in the system")


def test_elsewhere_nothing_is_known(tmp_path):
    assert available_memory(tmp_path).bytes is None


def test_a_cgroup_of_version_2_bounds_and_its_file_cache_counts_as_free(tmp_path):
    group = "sys/fs/cgroup/a/b"
    files = {
        **MEMINFO,
        "proc/self/cgroup": "0::/a/b\n",
        f"{group}/memory.max": "300000\n",
        f"{group}/memory.current": "250000\n",
        f"{group}/memory.stat": "anon 5\ninactive_file 40000\nactive_file 10000\n",
        "sys/fs/cgroup/a/memory.max": "max\n",
        "sys/fs/cgroup/a/memory.current": "1\n",
    }
    found = available_memory(place(tmp_path, files))
    assert found.bytes == 300000 - 250000 + 50000
    assert "cgroup" in found.limit


def test_the_group_around_ours_bounds_too(tmp_path):
    files = {
        **MEMINFO,
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/memory.max": "5000\n",
        "sys/fs/cgroup/a/memory.current": "6000\n",
    }
    assert available_memory(place(tmp_path, files)).bytes == 0


def test_a_cgroup_of_version_1_bounds_and_no_limit_is_none(tmp_path):
    base = "sys/fs/cgroup/memory"
    files = {
        **MEMINFO,
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x\n",
        f"{base}/memory.limit_in_bytes": "9223372036854771712\n",
        f"{base}/memory.usage_in_bytes": "1\n",
        f"{base}/x/memory.limit_in_bytes": "4096\n",
        f"{base}/x/memory.usage_in_bytes": "96\n",
    }
    assert available_memory(place(tmp_path, files)).bytes == 4000


def test_garbage_in_those_files_is_nothing_known(tmp_path):
    files = {
        "proc/meminfo": "MemAvailable: x kB\n",
        "proc/self/cgroup": "0\n\nx:y\n",
        "sys/fs/cgroup/memory.max": "-3",
    }
    assert available_memory(place(tmp_path, files)).bytes is None


def test_the_plan_is_what_the_executor_takes(folder):
    runner = load(folder, context=128, sequences=2)
    plan = runner.loading.memory
    native = runner.executor
    assert plan.store == native.store_bytes
    vectors = sum(runner.source.info(s).matrix_shape[1] for s in runner.source.slots if "norm" in s)
    packed = sum(matrix.nbytes for matrix in native.matrices.values())
    assert plan.weights == packed + 4 * vectors
    assert plan.needed == plan.weights + plan.store + plan.workspace


@pytest.mark.parametrize("name", CONFIGS)
def test_the_workspace_stays_under_its_bound(name, tmp_path):
    folder = write_huggingface(tmp_path / name, CONFIGS[name], random_weights(CONFIGS[name]))
    with open_model(folder) as source:
        runner = runner_of(source, RunSettings(context=64))
        bound = workspace_bound(build_program(source.config))
        assert runner.executor._native.workspace_bytes <= bound


def test_too_little_memory_is_refused_with_the_numbers(folder, monkeypatch):
    planted = Available(1 << 20, "left in a planted cgroup")
    monkeypatch.setattr(fewbit.model.memory, "available_memory", lambda: planted)
    with pytest.raises(UsageError) as caught:
        load(folder)
    for words in ("of memory (weights", "1.0 MB is left in a planted", "shorter context", "int8"):
        assert words in str(caught.value)


def test_unknown_memory_refuses_nothing(folder, monkeypatch):
    monkeypatch.setattr(fewbit.model.memory, "available_memory", lambda: Available(None, "unsaid"))
    assert load(folder, context=64).loading.memory.available is None
