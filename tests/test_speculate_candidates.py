"""Candidates drawn without replacement, by enumeration of every order and every judgement."""

import itertools

import numpy as np
import pytest

from fewbit.errors import UsageError
from fewbit.speculate.candidates import candidates_accept_reject
from fewbit.speculate.rows import remainder

V = 4


class Chances:
    """A generator whose numbers are chosen by the test; says which comparison came next."""

    def __init__(self, numbers):
        self._numbers = iter(numbers)

    def random(self):
        return next(self._numbers)


def orders(q, count):
    """Every ordered draw without replacement, and its probability."""
    for ids in itertools.permutations(np.flatnonzero(q).tolist(), count):
        weight, left = 1.0, 1.0
        for i in ids:
            weight *= q[i] / left
            left -= q[i]
        yield ids, weight


def emitted(rule_odds, q, p, count):
    law = np.zeros(V)
    for ids, weight in orders(q, count):
        reached = weight
        chances, last = rule_odds(ids, q, p)
        for token, chance in zip(ids, chances, strict=True):
            law[token] += reached * chance
            reached *= 1 - chance
        law += reached * last
    return law


def odds(ids, q, p):
    """The chances of the rule, found from outside: where the accepting numbers end."""
    chances = []
    for i in range(len(ids)):
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            numbers = [1 - 2**-53] * i + [middle] + [1 - 2**-53] * (len(ids) + 1)
            if candidates_accept_reject(ids, q, p, Chances(numbers))[0] == i:
                low = middle
            else:
                high = middle
        chances.append(high if high > 1e-15 else 0.0)
    return np.array(chances), last_row(ids, q, p)


def last_row(ids, q, p):
    q, p = q.copy(), p.copy()
    for token in ids:
        p = remainder(p, q, token)
        p /= p.sum()
        q[token] = 0
        q /= q.sum() or 1.0
    return p


def pair(seed):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(V)), rng.dirichlet(np.ones(V))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_emitted_follows_the_target(seed, count):
    q, p = pair(seed)
    assert emitted(odds, q, p, count) == pytest.approx(p, abs=1e-12)


def test_more_candidates_are_accepted_more_often():
    q, p = pair(0)
    kept = []
    for count in (1, 2, 3):
        rejected = sum(w * np.prod(1 - odds(ids, q, p)[0]) for ids, w in orders(q, count))
        kept.append(1 - rejected)
    assert kept[0] < kept[1] < kept[2]


@pytest.mark.parametrize(("seed", "count"), [(0, 2), (1, 3)])
def test_the_enumeration_sees_judging_by_the_first_distributions(seed, count):
    """Every candidate by the same p and q, as if drawn with replacement."""
    q, p = pair(seed)

    def deaf(ids, q, p):
        return np.array([min(1.0, p[i] / q[i]) for i in ids]), last_row(ids, q, p)

    assert np.abs(emitted(deaf, q, p, count) - p).max() > 0.01


def test_the_correction_is_drawn_from_what_is_left():
    q, p = np.array([0.5, 0.5, 0, 0]), np.array([0.0, 0.0, 0.25, 0.75])
    found = [candidates_accept_reject([0, 1], q, p, Chances([0.9, 0.9, u])) for u in (0.2, 0.3)]
    assert found == [(None, 2), (None, 3)]


def test_no_candidate_is_a_plain_draw():
    assert candidates_accept_reject([], [1.0, 0], [0, 1.0], Chances([0.5])) == (None, 1)


def test_a_candidate_given_twice_is_refused():
    with pytest.raises(UsageError, match="each comes once"):
        candidates_accept_reject([1, 1], [0.5, 0.5], [0.5, 0.5], np.random.default_rng(0))
