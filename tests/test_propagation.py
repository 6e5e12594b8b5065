"""The weight that makes up for earlier errors, against a dense least-squares problem in float64."""

import dataclasses

import numpy as np
import pytest
from solver_cases import statistics_of

from fewbit.cli.calibration import CalibrationOptions
from fewbit.errors import NumericalError, UsageError
from fewbit.methods.hessian import DAMPING, SHRINKAGE
from fewbit.methods.propagation import propagated
from fewbit.recipes import find

OUTPUTS, INPUTS, ROWS = 5, 24, 90


def inputs(seed=0):
    """Return x of a quantized model and how far the source's lies, which x tells in part."""
    random = np.random.default_rng(seed)
    mixed = random.standard_normal((INPUTS, INPUTS)) / 4
    x = (random.standard_normal((ROWS, INPUTS)) @ (np.eye(INPUTS) + mixed)).astype(np.float32)
    d = 0.3 * x @ random.standard_normal((INPUTS, INPUTS)) / 5
    return x, (d + 0.1 * random.standard_normal(x.shape)).astype(np.float32)


def weight(seed=1):
    return np.random.default_rng(seed).standard_normal((OUTPUTS, INPUTS)).astype(np.float32)


def lags(x, seed=4):
    """Return how far the residual stream lies behind the source's, which x tells in part."""
    random = np.random.default_rng(seed)
    told = x @ random.standard_normal((INPUTS, OUTPUTS)) / 5
    return (told + 0.1 * random.standard_normal(told.shape)).astype(np.float32)


def statistics(x, d=None, r=None):
    wide = x.astype(np.float64)
    return dataclasses.replace(
        statistics_of(x),
        drift=None if d is None else (d.astype(np.float64).T @ wide).astype(np.float32),
        lag=None if r is None else (r.astype(np.float64).T @ wide).astype(np.float32),
    )


def least_squares(w, x, d, r=0.0):
    """Minimize ||W' x - W (x + d) - r||^2 and what damping adds, as one stacked system of rows."""
    x, d, w = (a.astype(np.float64) for a in (x, d, w))
    diagonal = (x**2).sum(axis=0)
    ridge = np.diag(np.sqrt(DAMPING * diagonal.mean() + SHRINKAGE * diagonal))
    left = np.concatenate([x, ridge])
    right = np.concatenate([(x + d) @ w.T + r, ridge @ w.T])
    return np.linalg.lstsq(left, right, rcond=None)[0].T


def test_it_is_the_least_squares_fit_to_the_sources_outputs():
    (x, d), w = inputs(), weight()
    found = propagated(w, statistics(x, d))
    truth = least_squares(w, x, d)
    # H and D are sums in float32; the damped H has a condition below 1e4: 1e4 * 2^-24.
    assert np.abs(found - truth).max() < 1e-3 * np.abs(truth - w).max()


def test_what_the_stream_lacks_is_put_out_too():
    (x, d), w = inputs(), weight()
    r = lags(x)
    found, truth = propagated(w, statistics(x, d, r)), least_squares(w, x, d, r)
    assert np.abs(found - truth).max() < 1e-3 * np.abs(truth - w).max()
    without = propagated(w, statistics(x, d))
    assert np.abs(without - truth).max() > 0.1 * np.abs(truth - w).max()


def test_pieces_of_the_rows_get_their_own_part_of_the_lag():
    (x, d), w = inputs(), weight()
    taken = statistics(x, d, lags(x))
    pieces = [propagated(w[:2], taken), propagated(w[2:], taken, 2)]
    assert np.allclose(np.concatenate(pieces), propagated(w, taken), atol=1e-6)
    assert not np.allclose(propagated(w[2:], taken), pieces[1], atol=1e-2)


@pytest.mark.parametrize("wrong", ["transposed", "other sign", "undamped"])
def test_a_wrong_correction_is_seen(wrong):
    (x, d), w = inputs(), weight()
    taken, truth = statistics(x, d), least_squares(w, x, d)
    if wrong == "undamped":
        taken = dataclasses.replace(taken, gram=taken.gram * np.float32(1.01))
    else:
        taken = dataclasses.replace(
            taken, drift=taken.drift.T.copy() if wrong == "transposed" else -taken.drift
        )
    assert np.abs(propagated(w, taken) - truth).max() > 5e-3 * np.abs(truth - w).max()


def test_outputs_come_nearer_to_the_sources():
    (x, d), w = inputs(), weight()
    before = np.square(d @ w.T).sum()
    after = np.square(x @ propagated(w, statistics(x, d)).T - (x + d) @ w.T).sum()
    assert after < 0.5 * before


def test_without_drift_it_is_the_weight_itself():
    (x, d), w = inputs(), weight()
    assert propagated(w, statistics(x)) is w
    assert np.array_equal(propagated(w, statistics(x, np.zeros_like(d))), w)


def test_a_part_of_the_drift_is_that_part_of_the_correction():
    (x, d), w = inputs(), weight()
    whole, half = (propagated(w, statistics(x, part * d)) - w for part in (1, np.float32(0.5)))
    assert np.allclose(half, whole / 2, atol=1e-6)


def test_rescaled_channels_are_corrected_alike():
    x, d = inputs()
    factors = np.exp(np.random.default_rng(2).standard_normal(INPUTS)).astype(np.float32)
    taken = statistics(x, d, lags(x)).scaled(factors)
    exact = statistics(x / factors, d / factors, lags(x))
    assert np.allclose(taken.lag, exact.lag, rtol=1e-4, atol=1e-4)
    assert np.allclose(taken.drift, exact.drift, rtol=1e-4, atol=1e-4)
    assert np.allclose(taken.gram, exact.gram, rtol=1e-4, atol=1e-4)


def test_statistics_of_two_sets_add_up():
    (x, d), (y, e) = inputs(), inputs(3)
    both = statistics(x, d, lags(x)).plus(statistics(y, e, lags(y)))
    exact = statistics(*(np.concatenate(p) for p in ((x, y), (d, e), (lags(x), lags(y)))))
    assert np.allclose(both.lag, exact.lag, rtol=1e-4, atol=1e-4)
    assert np.allclose(both.drift, exact.drift, rtol=1e-4, atol=1e-4)
    assert statistics(x, d).plus(statistics(y)).drift is None


def test_bad_statistics_are_named():
    (x, d), w = inputs(), weight()
    taken = statistics(x, d)
    with pytest.raises(UsageError, match="propagation needs the Gram matrix"):
        propagated(w, dataclasses.replace(taken, gram=None))
    with pytest.raises(UsageError, match="of 24 inputs and the weight has 23"):
        propagated(w[:, :-1], taken)
    drift = taken.drift.copy()
    drift[3, 7] = np.nan
    with pytest.raises(NumericalError, match=r"drift from the source .* at input 7"):
        propagated(w, dataclasses.replace(taken, drift=drift))


def test_without_errors_to_make_up_for_it_is_refused_before_any_work():
    asked = CalibrationOptions(inputs="source", propagation=0.5)
    with pytest.raises(UsageError, match="with --inputs source there are none"):
        asked.of(find("gptq-q4_0"))
