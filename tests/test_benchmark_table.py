"""The rows of benchmarks/table.py: which figure meets which bar."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "table.py"


@pytest.fixture(scope="module")
def table():
    spec = importlib.util.spec_from_file_location("benchmark_table", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_ratio_is_taken_round_by_round_and_its_median_is_held_to_the_bar(table):
    # Medians of each side alone would give 30 / 10 = 3; the rounds' ratios are 2, 2 and 6.
    pairs = [(20.0, 10.0), (30.0, 15.0), (60.0, 10.0)]
    row = table.compared("decode", pairs, 2.5, "flash")
    assert row.figure == "2.00 x"
    assert row.spread == "2.00 to 6.00"
    assert row.met is False
    assert table.compared("decode", pairs, 2.0, "flash").met is True
    assert table.compared("decode", pairs, 0, "flash").met is None


def test_a_share_must_reach_its_bar_and_a_cost_must_not_exceed_it(table):
    share = table.at_least("bandwidth", [0.7, 0.8, 0.9], 0.78, table.PERCENT)
    assert (share.figure, share.bar, share.met) == ("80%", ">= 78%", True)
    assert table.at_least("bandwidth", [0.7, 0.7, 0.9], 0.78, table.PERCENT).met is False
    assert table.at_most("8 at once", [1.4, 1.6, 1.7], [2.0], 1.5).met is False
    assert table.at_most("8 at once", [1.4, 1.5, 1.7], [2.0], 1.5).met is True
    assert table.at_most("8 at once", [1.4], [], None).met is None


def test_the_table_is_markdown_with_a_row_for_what_was_not_run(table):
    rows = [
        table.compared("decode", [(20.0, 10.0)], 2.5, "flash"),
        table.not_run("1.5B, decode", ">= 1.65 x", "give --model-1.5b FILE"),
    ]
    head, rule, first, second = table.markdown(rows).splitlines()
    assert len({len(line) for line in (head, rule, first, second)}) == 1
    assert set(rule) == {"|", "-", " "}
    assert "not run (give --model-1.5b FILE)" in second
    assert "| no" in first
    assert json.loads(json.dumps(table.as_json(rows)))[0]["values"]["peer"] == [10.0]
