import runpy
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "affine_groups.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def test_it_prints_the_errors_and_writes_a_page_that_opens_offline(example, tmp_path, capsys):
    page = tmp_path / "plot.html"
    example["main"](["--size", "256", "--outliers", "2", "--out", str(page)])
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[1:5]] == list(example["FORMATS"])
    assert printed[-1] == f"plot: {page}"
    text = page.read_text()
    assert "Plotly.newPlot" in text
    assert 'src="http' not in text


def test_smaller_groups_confine_the_outliers(example):
    x = example["vector_with_outliers"](1024, 4, seed=0)
    errors = [example["reconstruct"](x, name).relative_error for name in example["FORMATS"]]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.6 * errors[0]


def test_a_vector_without_outliers_gains_little(example):
    x = example["vector_with_outliers"](1024, 0, seed=0)
    whole, _, groups, _ = (
        example["reconstruct"](x, name).relative_error for name in example["FORMATS"]
    )
    assert 0.5 < groups / whole < 1
    assert np.isfinite(x).all()
