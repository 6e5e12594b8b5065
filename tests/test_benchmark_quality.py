"""benchmarks/quality.py: what is held to a bar, what wins, what is measured once."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf

from fewbit.checkpoint.gguf_read import GgufCheckpoint
from fewbit.formats.registry import decode

FOLDER = Path(__file__).parents[1] / "benchmarks"
NAMES = ("figures", "divergences", "candidates", "off_grid", "making", "quality")


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(FOLDER))
    yield {name: importlib.import_module(name) for name in NAMES}
    sys.path.remove(str(FOLDER))
    for name in NAMES:
        del sys.modules[name]


def values(*found):
    return np.array(found)


def test_a_small_ratio_is_held_to_its_bar_above_the_floor(benchmark):
    compared = benchmark["quality"].compared
    ours, theirs, floor = values(0.010, 0.012), values(0.018, 0.022), values(0.004, 0.004)
    row = compared(ours, theirs, floor, 0.5)
    assert row["ratio"].mean == pytest.approx(0.55)
    assert row["ratio_above_floor"].mean == pytest.approx(7 / 16)
    assert row["met"]
    assert not compared(10 * ours, 10 * theirs, floor, 0.5)["met"]  # large: as it is


def test_a_bar_is_met_surely_only_with_the_whole_interval(benchmark):
    ours, theirs = values(0.1, 0.5, 0.1, 0.2), values(0.4, 0.5, 0.4, 0.6)
    row = benchmark["quality"].compared(ours, theirs, values(0, 0, 0, 0), 0.5)
    assert row["met"] and not row["sure"]


def test_windows_are_resampled_together(benchmark):
    theirs = np.random.default_rng(0).uniform(0.1, 0.9, 40)
    paired = benchmark["figures"].ratio(theirs / 2, theirs)
    assert (paired.low, paired.mean, paired.high) == pytest.approx((0.5, 0.5, 0.5))
    alone = benchmark["figures"].ratio(theirs[::-1] / 2, theirs)
    assert alone.high - alone.low > 0.1


def measured(benchmark, tmp_path, sizes, found):
    """What a table is made of: one file of ours, `q4_0`, and peers with sizes and values."""
    candidates, quality = benchmark["candidates"], benchmark["quality"]
    candidate = benchmark["divergences"].Candidate
    made = candidates.Made(
        name="91 MB", recipe="gptq", peers=tuple(n for n in sizes if n != "ours"), bar=0.4
    )
    of = {}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
        of[name] = candidate(tmp_path / name)
    ours = {"91 MB": (made, of.pop("ours"))}
    by = {(ours["91 MB"][1] if n == "ours" else of[n]): values(*v) for n, v in found.items()}
    return quality.Measured(ours, of, by, values(0, 0))


def test_the_best_of_the_peers_that_are_no_larger_counts(benchmark, tmp_path):
    sizes = {"ours": 1000, "Q4_0": 1005, "IQ4_XS": 990, "Q5_0": 1200}
    found = {"ours": (0.1, 0.1), "Q4_0": (0.5, 0.5), "IQ4_XS": (0.3, 0.3), "Q5_0": (0.01, 0.01)}
    table = measured(benchmark, tmp_path, sizes, found)
    assert table.best_peer("91 MB") == "IQ4_XS"
    row = benchmark["quality"].rows_of(table)[-1]
    assert (row["peer"], row["met"]) == ("IQ4_XS", True)
    del found["ours"]
    assert measured(benchmark, tmp_path, sizes, found).best_peer("91 MB") is None


def test_a_claim_needs_an_interval_that_excludes_0(benchmark, tmp_path):
    quality, candidates = benchmark["quality"], benchmark["candidates"]
    candidate = benchmark["divergences"].Candidate
    parts = {made.name: made for made in candidates.PARTS["methods"]}
    ours = {
        name: (parts[name], candidate(tmp_path / name))
        for name in ("rtn q4_0", "awq q4_0", "gptq q4_0")
    }
    worse = np.linspace(0.2, 0.4, 20)
    noise = np.where(np.arange(20) % 2, 0.05, -0.049)
    found = {"rtn q4_0": worse, "awq q4_0": worse - 0.01, "gptq q4_0": worse + noise}
    by = {ours[name][1]: value for name, value in found.items()}
    rows = quality.claims_of(quality.Measured(ours, {}, by, np.zeros(20)))
    met = {row["name"]: row["met"] for row in rows}
    assert met == {"awq q4_0 - rtn q4_0": True, "gptq q4_0 - rtn q4_0": False}


def test_every_claim_names_files_that_are_made(benchmark):
    candidates = benchmark["candidates"]
    names = [made.name for part in candidates.PARTS.values() for made in part]
    assert len(set(names)) == len(names)
    for claim in candidates.CLAIMS:
        assert {claim.better, claim.worse} <= set(names)
    for first, second, _ in candidates.MULTIPLES:
        assert {first, second} <= set(names)


def test_what_is_measured_is_kept_until_its_file_changes(benchmark, tmp_path):
    kept_values = benchmark["divergences"].kept_values
    windows = {"a": np.zeros(4, np.int32), "b": np.ones(4, np.int32)}
    asked = []

    def measure(left):
        for key in left:
            asked.append(key)
            if key == "b" and asked == ["a", "b"]:
                raise KeyboardInterrupt
            yield key, float(ord(key))

    path = tmp_path / "kept" / "x.json"
    with pytest.raises(KeyboardInterrupt):
        kept_values(path, "one", windows, measure)
    assert kept_values(path, "one", windows, measure).tolist() == [97.0, 98.0]
    assert asked == ["a", "b", "b"]  # the first window was kept when the run was stopped
    kept_values(path, "one", windows, measure)
    assert len(asked) == 3
    kept_values(path, "other", windows, measure)
    assert len(asked) == 5
    assert json.loads(path.read_text())["state"] == "other"


def test_a_source_is_told_from_another_of_its_name(benchmark, tmp_path):
    state_of = benchmark["divergences"].state_of
    file = tmp_path / "m.gguf"
    file.write_bytes(b"one")
    before = state_of(file)
    file.write_bytes(b"three")
    assert state_of(file) != before
    assert state_of(tmp_path) == state_of(file)


@pytest.mark.parametrize("spread", [0.0, 0.25])
def test_the_rescale_of_a_source_can_be_left_out(benchmark, tmp_path, spread):
    off_grid = benchmark["off_grid"]
    config = CONFIGS["llama"]
    file = write_gguf(tmp_path / "m.gguf", config, random_weights(config))
    off_grid.move_off_grid(file, tmp_path / "out.gguf", spread=spread)
    with GgufCheckpoint(file) as before, GgufCheckpoint(tmp_path / "out.gguf") as after:
        for name in before.tensors:  # the tiny file is float: there is no grid, and no noise
            one, other = decode(before.read(name)), decode(after.read(name))
            same = np.allclose(one, other, rtol=2.0**-8, atol=0)  # bf16 rounds by so much at most
            moved = name.startswith("blk.") and not name.endswith(("q.bias", "k.bias"))
            assert same == (spread == 0.0 or not moved), name
