"""The exact rule, by enumeration of every outcome, with planted bugs that the check must find."""

import itertools

import numpy as np
import pytest

from fewbit.errors import NumericalError, UsageError
from fewbit.sampling import SamplingParams, distribution
from fewbit.speculate.exact import exact_accept_reject

CELLS = 12
"""A uniform number is stood for by the middles of 12 equal cells. The probabilities below make
every threshold (acceptance ratios, cumulative remainders and rows) a multiple of 1/12, so no cell
holds a threshold inside and the enumeration is an exact integral, not a sample."""


class Uniforms:
    """Hands out chosen numbers and says when they did not suffice."""

    def __init__(self, chosen):
        self.left = list(chosen)

    def random(self):
        if not self.left:
            raise NeedsMore
        return self.left.pop(0)


class NeedsMore(Exception):
    pass


def outcomes(rule, proposals, draft, target, chosen=()):
    """Return {(accepted, correction): probability} over all uniform numbers, exactly."""
    try:
        return {rule(proposals, draft, target, Uniforms(chosen)): 1.0}
    except NeedsMore:
        total = {}
        for cell in range(CELLS):
            inner = outcomes(rule, proposals, draft, target, (*chosen, (cell + 0.5) / CELLS))
            for outcome, probability in inner.items():
                total[outcome] = total.get(outcome, 0.0) + probability / CELLS
        return total


def emitted(rule, drawn_from, draft, target):
    """Return {tokens emitted: probability} when proposals are really drawn from `drawn_from`."""
    length, vocabulary = drawn_from.shape
    total = {}
    for proposals in itertools.product(range(vocabulary), repeat=length):
        weight = np.prod([drawn_from[i, x] for i, x in enumerate(proposals)])
        if weight == 0:
            continue
        for (accepted, correction), p in outcomes(rule, proposals, draft, target).items():
            tokens = proposals[:accepted] + (() if correction is None else (correction,))
            total[tokens] = total.get(tokens, 0.0) + weight * p
    return total


def largest_error(rule, drawn_from, draft, target):
    """Return the largest difference from the target, over each position reached.

    Given that the first i proposals were accepted, the token at i must be distributed as target[i].
    """
    found = emitted(rule, drawn_from, draft, target)
    worst = 0.0
    for i, row in enumerate(target):
        counts = np.zeros(len(row))
        for tokens, p in found.items():
            if len(tokens) > i:
                counts[tokens[i]] += p
        worst = max(worst, float(np.abs(counts / counts.sum() - row).max()))
    return worst


Q = np.array([[1 / 2, 1 / 4, 1 / 4], [1 / 3, 1 / 3, 1 / 3]])
P = np.array([[1 / 4, 5 / 12, 1 / 3], [1 / 4, 1 / 6, 7 / 12], [1 / 12, 1 / 2, 5 / 12]])
"""p / q of token 0 is 1/2, the remainder (0, 1/6, 1/12); then 3/4, 1/2 and 1, and (0, 0, 1/4)."""


@pytest.mark.parametrize("rows", [2, 3])
def test_the_general_rule_gives_the_targets_distribution(rows):
    assert largest_error(exact_accept_reject, Q, Q, P[:rows]) < 1e-12


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("proposals", list(itertools.product(range(3), repeat=2)))
def test_the_point_mass_rule_gives_the_targets_distribution(proposals, rows):
    """Rows whose remainders, divided by 1 - p(x), fall on twelfths for every proposal."""
    target = np.array([[1 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 3, 1 / 3], [1 / 12, 1 / 2, 5 / 12]])
    certain = np.eye(3)[list(proposals)]
    assert largest_error(exact_accept_reject, certain, None, target[:rows]) < 1e-12
    assert largest_error(exact_accept_reject, certain, certain, target[:rows]) < 1e-12


# --- planted bugs -------------------------------------------------------------------------------


def shares_a_number(proposals, draft, target, rng):
    """vLLM #54282: the number that rejected also corrects."""
    for i, x in enumerate(proposals):
        u = rng.random()
        if u >= target[i, x] / draft[i, x]:
            left = np.maximum(target[i] - draft[i], 0)
            reached = np.cumsum(left / left.sum())
            return i, min(int(np.searchsorted(reached, u, side="right")), 2)
    return len(proposals), None


def does_not_renormalize(proposals, draft, target, rng):
    for i, x in enumerate(proposals):
        if rng.random() >= target[i, x] / draft[i, x]:
            reached = np.cumsum(np.maximum(target[i] - draft[i], 0))
            return i, min(int(np.searchsorted(reached, rng.random(), side="right")), 2)
    return len(proposals), None


def corrects_from_the_target(proposals, draft, target, rng):
    for i, x in enumerate(proposals):
        if rng.random() >= target[i, x] / draft[i, x]:
            reached = np.cumsum(target[i])
            return i, min(int(np.searchsorted(reached, rng.random(), side="right")), 2)
    return len(proposals), None


@pytest.mark.parametrize("rule", [shares_a_number, does_not_renormalize, corrects_from_the_target])
def test_the_enumeration_finds_a_wrong_rule(rule):
    assert largest_error(rule, Q, Q, P[:2]) > 0.02


def test_the_enumeration_finds_a_q_that_was_not_sampled_from():
    """transformers #47932: proposals come from a sharper distribution than the one passed."""
    sharper = np.array([[3 / 4, 1 / 8, 1 / 8], [1 / 3, 1 / 3, 1 / 3]])
    assert largest_error(exact_accept_reject, sharper, Q, P[:2]) > 0.02


def test_the_enumeration_finds_top_p_on_one_side_only():
    """vLLM #10198: the draft draws from the truncated row but is judged by the whole one."""
    logits = np.log(Q[0]).astype(np.float32)
    whole = distribution(logits, SamplingParams())[None]
    cut = distribution(logits, SamplingParams(top_p=0.6))[None]
    assert cut[0].min() == 0
    target = np.full((1, 3), 1 / 3)
    assert largest_error(exact_accept_reject, cut, whole, target) > 0.02
    assert largest_error(exact_accept_reject, cut, cut, target) < 1e-6  # float32 logits


# --- by sampling --------------------------------------------------------------------------------


def frequency_of_first_token(rule, count=20_000):
    """vLLM #54282's own figures: p(0) = 0.6, and its bug made it 0.630."""
    q = np.array([[0.5, 0.3, 0.2]])
    p = np.array([[0.6, 0.1, 0.3]])
    proposer, rng = np.random.default_rng(1), np.random.default_rng(2)
    hits = 0
    for x in proposer.choice(3, size=count, p=q[0]):
        accepted, correction = rule([x], q, p, rng)
        hits += (x if accepted else correction) == 0
    return hits / count


def test_sampling_agrees_and_would_see_a_bias_of_3_percent():
    """The standard deviation is sqrt(0.24 / 20000) = 0.0035: 0.03 is 8.7 of them, 0.015 is 4.3."""
    assert abs(frequency_of_first_token(exact_accept_reject) - 0.6) < 0.015
    assert abs(frequency_of_first_token(shares_a_number) - 0.6) > 0.015


# --- the contract -------------------------------------------------------------------------------


def test_a_fully_accepted_block_ends_as_the_rows_say():
    rng = np.random.default_rng(0)
    sure = np.eye(3)
    assert exact_accept_reject([0, 1], None, sure[:2], rng) == (2, None)
    assert exact_accept_reject([0, 1], None, sure, rng) == (2, 2)
    assert exact_accept_reject([], None, sure[:1], rng) == (0, 0)
    assert exact_accept_reject([0, 2, 1], None, sure, rng) == (1, 1)


def test_a_token_the_target_forbids_is_never_accepted():
    target = np.array([[0.0, 1.0]])
    draft = np.array([[1.0, 0.0]])
    for seed in range(50):
        assert exact_accept_reject([0], draft, target, np.random.default_rng(seed)) == (0, 1)


@pytest.mark.parametrize(
    ("proposals", "draft", "target", "words"),
    [
        ([0.5], None, [[1.0]], "integer"),
        ([[0]], None, [[1.0]], "in one row"),
        ([2], None, [[0.5, 0.5]], r"proposals\[0\] is 2"),
        ([-1], None, [[0.5, 0.5]], r"proposals\[0\] is -1"),
        ([0], None, [[0.5, 0.5]] * 3, "3 rows for 1"),
        ([0], None, [0.5, 0.5], "rows over the vocabulary"),
        ([0], None, [[0.5, 0.4]], "sums to"),
        ([0], None, [[1.5, -0.5]], "negative"),
        ([0], [[1.0]], [[0.5, 0.5]], r"need \[1, 2\]"),
        ([0], [[0.0, 1.0]], [[0.5, 0.5]], "probability 0"),
    ],
)
def test_input_that_cannot_be_is_refused(proposals, draft, target, words):
    with pytest.raises(UsageError, match=words):
        exact_accept_reject(proposals, draft, target, np.random.default_rng(0))


def test_a_probability_that_is_not_finite_is_located():
    with pytest.raises(NumericalError, match=r"target_probs\[0, 1\] is nan"):
        exact_accept_reject([0], None, [[1.0, np.nan]], np.random.default_rng(0))
