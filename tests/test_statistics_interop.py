"""Corrections and scores against statsmodels."""

# ruff: noqa: PLC0415  (the oracles are imported inside the tests: `make test-interop` only)

import numpy as np
import pytest

from fewbit.evaluate.gating.gate import holm
from fewbit.evaluate.gating.proportions import PairedCounts

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("seed", range(20))
def test_holm_is_that_of_statsmodels(seed):
    from statsmodels.stats.multitest import multipletests

    chances = np.random.default_rng(seed).random(15) ** 4
    expected = multipletests(chances, 0.025, method="holm")[0]
    assert holm(list(chances), 0.025) == list(expected)


@pytest.mark.parametrize(("b", "c"), [(5, 2), (12, 3), (30, 30), (1, 9)])
def test_at_no_difference_tangos_score_is_mcnemars(b, c):
    from statsmodels.stats.contingency_tables import mcnemar

    expected = mcnemar([[40, b], [c, 40]], exact=False, correction=False).statistic
    assert PairedCounts(80 + b + c, b, c).deviate(0.0) ** 2 == pytest.approx(expected)
