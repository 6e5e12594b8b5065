"""What speculation is worth: the formula against the paper's, a sum over outcomes, and the rule."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.cli import app
from fewbit.errors import UsageError
from fewbit.records.base import from_json
from fewbit.records.speed_model import SpeedModelReport
from fewbit.speculate.speed_model import (
    SpeedModel,
    expected_tokens,
    linear_costs,
    simulate,
    speed_curve,
)


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("cost", [0.0, 0.1, 0.4])
def test_the_formula_is_the_papers(chance, length, cost):
    """Theorem 3.8: (1 - a^(g + 1)) / ((1 - a) (g c + 1))."""
    papers = (1 - chance ** (length + 1)) / ((1 - chance) * (length * cost + 1))
    model = SpeedModel(draft_cost=cost, lengths=(length,), outputs=1, output_tokens=1)
    assert speed_curve(model, "a", (chance,)).points[0].speedup == pytest.approx(papers, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_expected_tokens_are_the_sum_over_all_outcomes(acceptance):
    total = 0.0
    for outcome in itertools.product((True, False), repeat=len(acceptance)):
        chance = np.prod(
            [a if good else 1 - a for a, good in zip(acceptance, outcome, strict=True)]
        )
        run = len(list(itertools.takewhile(bool, outcome)))
        total += chance * (run + 1)
    assert expected_tokens(acceptance, len(acceptance)) == pytest.approx(total, abs=1e-12)


def test_the_last_acceptance_counts_for_all_that_follow():
    assert expected_tokens((0.5,), 3) == 1 + 0.5 + 0.25 + 0.125
    assert expected_tokens((0.5, 1.0), 3) == 1 + 3 * 0.5
    assert expected_tokens((0.5,), 0) == 1


@pytest.mark.parametrize(
    ("acceptance", "length"), [((0.25,), 2), ((0.5,), 4), ((0.9,), 8), ((0.9, 0.5, 0.2), 5)]
)
def test_the_simulation_meets_the_formula(acceptance, length):
    """The mean of n long outputs is normal with the deviation of their own spread over sqrt(n);
    4 of these are exceeded once in 16,000 seeds. The last block, cut at the output's end, wastes
    at most `length` of 4,000 tokens, and the mean of 1 / blocks is above 1 / (mean of blocks) by
    less than the square of the spread."""
    model = SpeedModel(draft_cost=0.1, outputs=100, output_tokens=4000, seed=1)
    played = simulate(model, acceptance, length)
    formula = expected_tokens(acceptance, length) / model.block_cost(length)
    spread = played.std() / played.mean()
    slack = 4 * spread / np.sqrt(len(played)) + length / 4000 + spread**2
    assert played.mean() / formula == pytest.approx(1, abs=slack)
    assert slack < 0.02


def test_a_wrong_formula_would_be_seen():
    """The negative control: one more token a block, as some write it, is far outside the slack."""
    model = SpeedModel(draft_cost=0.1, outputs=100, output_tokens=4000, seed=1)
    played = simulate(model, (0.5,), 4)
    wrong = (expected_tokens((0.5,), 4) + 1) / model.block_cost(4)
    assert abs(played.mean() / wrong - 1) > 0.1


def test_the_simulation_repeats_and_follows_its_seed():
    model = SpeedModel(draft_cost=0.1, outputs=20, output_tokens=50)
    other = SpeedModel(draft_cost=0.1, outputs=20, output_tokens=50, seed=1)
    assert (simulate(model, (0.5,), 3) == simulate(model, (0.5,), 3)).all()
    assert (simulate(model, (0.5,), 3) != simulate(other, (0.5,), 3)).any()


@pytest.mark.parametrize(("chance", "tokens"), [(0.0, 1), (1.0, 5)])
def test_certain_drafts_are_exact(chance, tokens):
    model = SpeedModel(draft_cost=0.25, outputs=3, output_tokens=20, lengths=(4,))
    point = speed_curve(model, "a", (chance,)).points[0]
    assert (point.tokens, point.cost) == (tokens, 2.0)
    assert point.speedup == point.simulated == point.low == point.high == tokens / 2


def test_rows_cost_what_is_given_and_go_on_in_a_line():
    model = SpeedModel(draft_cost=0.1, step_costs=((1, 1.0), (4, 1.15), (8, 1.5)))
    found = [model.step(rows) for rows in (1, 2, 4, 6, 8, 12)]
    assert found == pytest.approx([1, 1.05, 1.15, 1.325, 1.5, 1.85])
    assert SpeedModel(draft_cost=0, step_costs=linear_costs(0.1)).step(6) == pytest.approx(1.5)
    assert SpeedModel(draft_cost=0).step(9) == 1


def test_the_best_length_is_none_where_none_pays():
    model = SpeedModel(draft_cost=1.0, outputs=1, output_tokens=1)
    assert speed_curve(model, "a", (0.5,)).best is None
    assert speed_curve(SpeedModel(draft_cost=0.1), "a", (0.5,)).best.length == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"draft_cost": -0.1}, "the cost of a drafted token is -0.1"),
        ({"draft_cost": float("nan")}, "the cost of a drafted token is nan"),
        ({"lengths": ()}, "draft lengths are"),
        ({"lengths": (0,)}, "draft lengths are"),
        ({"lengths": (65,)}, r"give some in 1\.\.64"),
        ({"outputs": 0}, "0 outputs of 256 tokens"),
        ({"output_tokens": 1 << 40}, "give fewer"),
        ({"step_costs": ((1, 1.0), (4, -1.0))}, "costs of steps are"),
        ({"step_costs": ((1, 1.0), (4, 1.2), (2, 1.1))}, "by ascending rows"),
        ({"step_costs": ((1, 1.0), (2, float("inf")))}, "costs of steps are"),
    ],
)
def test_impossible_values_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        SpeedModel(**({"draft_cost": 0.1} | fields))


@pytest.mark.parametrize("acceptance", [(), (1.1,), (-0.1,), (float("nan"),)])
def test_impossible_acceptance_is_refused(acceptance):
    with pytest.raises(UsageError, match="acceptance is"):
        speed_curve(SpeedModel(draft_cost=0.1), "a", acceptance)


def test_the_command_prints_formula_and_simulation(capsys):
    assert (
        app.run(["speed-model", "--acceptance", "0.25,0.9", "--k", "1..3", "--outputs", "9"]) == 0
    )
    out = capsys.readouterr().out
    assert "accepted: 0.25" in out
    assert "1.14 1.1" in out
    assert "K = 1" in out
    assert "K = 3" in out


def test_the_command_writes_its_record_and_a_plot(tmp_path, capsys):
    page = tmp_path / "plot.html"
    given_options = ["--draft-cost", "0.2", "--row-cost", "4=1.15,8=1.5", "-k", "1,2,4"]
    assert app.run(["speed-model", *given_options, "--html", str(page), "--json", "-"]) == 0
    report = from_json(SpeedModelReport, capsys.readouterr().out.encode(), name="stdout")
    assert [curve.acceptance for curve in report.curves] == [(0.25,), (0.5,), (0.9,)]
    assert [point.length for point in report.curves[0].points] == [1, 2, 4]
    assert report.step_costs[1].cost == 1.15
    text = page.read_text()
    assert "Plotly.newPlot" in text
    assert 'src="http' not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--acceptance", "x"], "--acceptance is 'x'"),
        (["--acceptance", "2"], "acceptance is [2.0]"),
        (["--k", "1..x"], "--k is '1..x'"),
        (["--k", "1..1000000000"], "--k is"),
        (["--k", "9..3"], "draft lengths are []"),
        (["--row-cost", "4=x"], "--row-cost is '4=x'"),
        (["--draft-cost=-1"], "the cost of a drafted token is -1.0"),
        (["--seed=-1"], "the seed is -1"),
        (["--from-run", "nothing.json"], "nothing.json cannot be read"),
    ],
)
def test_wrong_options_are_one_line_and_2(options, message, capsys):
    assert app.run(["speed-model", *options]) == 2
    captured = capsys.readouterr().err
    assert message in captured
    assert captured.count("\n") == 1


def test_a_file_that_is_no_run_is_refused(tmp_path, capsys):
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"model": 3}))
    assert app.run(["speed-model", "--from-run", str(file)]) == 2
    assert "is not a valid GenerationReport record" in capsys.readouterr().err


def test_the_guides_table_is_what_the_model_says():
    guide = (Path(__file__).parent.parent / "docs" / "speculation.md").read_text()
    rows = re.findall(r"^\| (0\.\d+)[^|]* \| (\d) \| (\d\.\d\d) \|$", guide, re.MULTILINE)
    assert len(rows) == 3
    for cost, length, times in rows:
        steps = ((1, 1.0), (4, 1.15), (8, 1.5))
        model = SpeedModel(draft_cost=float(cost), step_costs=steps, outputs=1)
        best = speed_curve(model, "a", (0.9,)).best
        assert (best.length, f"{best.speedup:.2f}") == (int(length), times)
