"""Divergence of two models' logits against definitions in extended precision."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fewbit.evaluate.language.divergence import compare, concatenate, first_not_finite


def slow(p_logits, q_logits):
    """KL(p || q) straight from its definition, in long double."""
    logs = []
    for logits in (p_logits, q_logits):
        x = np.asarray(logits, np.longdouble)
        x = x - x.max()
        logs.append(x - np.log(np.exp(x).sum()))
    return float((np.exp(logs[0]) * (logs[0] - logs[1])).sum())


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 8192, 8193, 49152])
def test_equals_the_definition(vocabulary):
    rng = np.random.default_rng(vocabulary)
    a = (rng.standard_normal((3, vocabulary)) * 5).astype(np.float32)
    b = (a + rng.standard_normal(a.shape) * 0.3).astype(np.float32)
    targets = rng.integers(vocabulary, size=3).astype(np.int32)
    found = compare(a, b, targets)
    # The module's bound: V u max|A - B|.
    bound = 1e-14 + vocabulary * 2.0**-53 * 20
    for i in range(3):
        assert found.divergence[i] == pytest.approx(slow(a[i], b[i]), abs=bound)
        assert found.reverse_divergence[i] == pytest.approx(slow(b[i], a[i]), abs=bound)
        logs = a[i].astype(np.float64) - math.log(np.exp(a[i].astype(np.float64)).sum())
        assert found.source_loss[i] == pytest.approx(-logs[targets[i]], abs=1e-10)
        assert found.agreement[i] == (a[i].argmax() == b[i].argmax())


def test_a_swapped_direction_would_be_seen():
    """The negative control for the test above: the two directions differ."""
    a = np.array([[0.0, 3.0, -1.0]], np.float32)
    b = np.array([[1.0, 0.0, 2.0]], np.float32)
    found = compare(a, b, np.zeros(1, np.int32))
    assert abs(found.divergence[0] - found.reverse_divergence[0]) > 0.1


def test_equal_logits_give_exactly_zero():
    rng = np.random.default_rng(0)
    a = (rng.standard_normal((16, 10_000)) * 8).astype(np.float32)
    found = compare(a, a.copy(), np.zeros(16, np.int32))
    assert (found.divergence == 0).all()
    assert (found.reverse_divergence == 0).all()
    assert (found.source_loss == found.candidate_loss).all()
    assert found.agreement.all()


def test_ties_go_to_the_lower_id():
    a = np.array([[1.0, 2.0, 2.0]], np.float32)
    b = np.array([[1.0, 2.0, 1.0]], np.float32)
    c = np.array([[1.0, 1.0, 2.0]], np.float32)
    targets = np.zeros(1, np.int32)
    assert compare(a, b, targets).agreement[0]
    assert not compare(a, c, targets).agreement[0]


def test_far_apart_logits_do_not_overflow():
    a = np.array([[80.0, -80.0]], np.float32)
    found = compare(a, -a, np.zeros(1, np.int32))
    assert found.divergence[0] == pytest.approx(160.0)
    big = np.array([[3e38, -3e38]], np.float32)
    assert np.isfinite(compare(big, -big, np.zeros(1, np.int32)).divergence).all()


rows = hnp.arrays(np.float32, (2, 9), elements=st.floats(-1e4, 1e4, width=32))


@given(rows)
def test_a_divergence_is_never_negative(pair):
    found = compare(pair[:1], pair[1:], np.zeros(1, np.int32))
    assert found.divergence[0] >= 0
    assert found.reverse_divergence[0] >= 0


@given(rows, st.floats(-100, 100))
def test_a_constant_added_to_all_logits_changes_nothing(pair, shift):
    found = compare(pair[:1], pair[:1] + np.float32(shift), np.zeros(1, np.int32))
    # Adding rounds each logit by up to 2^-24 of its size; KL <= max log-ratio.
    assert found.divergence[0] <= 2 * 2.0**-24 * 1.02e4


def test_concatenation_keeps_order():
    a = np.array([[0.0, 1.0], [2.0, 0.0], [0.5, 0.5]], np.float32)
    b, targets = a[::-1].copy(), np.array([0, 1, 0], np.int32)
    parts = [compare(a[:2], b[:2], targets[:2]), compare(a[2:], b[2:], targets[2:])]
    whole = compare(a, b, targets)
    assert (concatenate(parts).divergence == whole.divergence).all()
    assert (concatenate(parts).agreement == whole.agreement).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_value_that_is_not_finite_is_located(value):
    logits = np.zeros((4, 5), np.float32)
    assert first_not_finite(logits) is None
    logits[2, 3] = logits[3, 0] = value
    assert first_not_finite(logits) == (2, 3)


def of_16_bits(source, candidate):
    """KL(source || candidate) as llama.cpp's perplexity tool gives it, row by row.

    It keeps the source's log-probabilities in 16 bits, evenly between the largest and the least or
    what is 16 nats below, leaves out what is then less likely than exp(-16), and computes in
    float32 but for the sums (tools/perplexity/perplexity.cpp of llama.cpp, its base file's form).
    """
    f4 = np.float32
    found = []
    for a, b in zip(source, candidate, strict=True):
        top, least = a.max(), max(a.min(), f4(a.max() - f4(16)))
        total = f4(math.log(np.exp(a - top).sum(dtype=np.float64)))
        scale = f4((top - least) / f4(65535))
        kept = (
            np.where(a > least, np.rint((f4(1) / scale) * (a - least)), f4(0)) if scale else 0 * a
        )
        logs = scale * kept.astype(f4) + (least - top - total)
        shift = b.max() + f4(math.log(np.exp(b - b.max()).sum(dtype=np.float64)))
        likely = logs > f4(-16)
        terms = np.exp(logs[likely]) * (logs[likely] - b[likely] + shift)
        found.append(float(terms.sum(dtype=np.float64)))
    return np.array(found)


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.3])
@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_is_within_a_thousandth_of_a_base_in_16_bits(noise, sharpness):
    """Logits like a language model's: a few likely tokens over many that are not.

    A step of 16 bits is at most 16 / 65535 = 0.00024 nats, so a stored log-probability is off by at
    most half of that, and so is a mean of them; what is left out weighs at most V exp(-16), 0.0006
    for 5,000 tokens, and in practice next to nothing.
    """
    rng = np.random.default_rng(7)
    a = (rng.gumbel(size=(24, 5000)) * sharpness).astype(np.float32)
    b = (a + rng.standard_normal(a.shape) * noise).astype(np.float32)
    ours = compare(a, b, np.zeros(24, np.int32)).divergence
    theirs = of_16_bits(a, b)
    assert np.abs(ours - theirs).max() < 0.001
    assert abs(ours.mean() - theirs.mean()) < 0.0005
    if noise == 0.0:
        assert (ours == 0).all()
        assert (theirs != 0).any()  # the tool's own floor
