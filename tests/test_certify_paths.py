"""Paths through random numbers: all of them, each once, with its probability."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.certify.paths import EDGE, Choice, NumberPath, all_paths

A, B = (0, 0, 0), (1, 0, 0)
WEIGHTS = st.lists(st.floats(0, 1), min_size=2, max_size=4).filter(lambda w: sum(w) > 0.1)


def law_of(decide):
    """Return the probability of each outcome of a function of a path."""
    law, seen = {}, []

    def walk(path):
        seen[:] = [decide(path)]

    for path in all_paths(walk):
        law[seen[0]] = law.get(seen[0], 0) + path.weight
    return law


@given(WEIGHTS, st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_every_outcome_has_its_probability(weights, chances):
    total = sum(weights)

    def decide(path):
        drawn = path.pick(A, np.array(weights))
        return drawn, path.passes(B, chances[drawn])

    law = law_of(decide)
    assert sum(law.values()) == pytest.approx(1, abs=1e-10)
    for i, weight in enumerate(weights):
        for passed, chance in ((True, chances[i]), (False, 1 - chances[i])):
            # Intervals under two edges are left out, and so is what they would have led to.
            assert law.get((i, passed), 0) == pytest.approx(weight / total * chance, abs=1e-10)


def test_a_number_that_decides_twice_is_one_number():
    law = law_of(lambda path: (path.passes(A, 0.5), path.passes(A, 0.25)))
    assert law == {(True, True): 0.25, (True, False): 0.25, (False, False): 0.5}


def test_numbers_lie_at_both_ends_of_their_intervals():
    paths = list(all_paths(lambda path: [path.passes((i, 0, 0), 0.5) for i in range(3)]))
    last = paths[-1].numbers()
    assert len(paths) == 8
    assert {abs(u - 0.5) for u in last.values()} | {1 - u for u in last.values()} >= {EDGE}


def test_a_path_that_was_given_is_walked_again():
    path = NumberPath((Choice(A, 0.5, 1.0),))
    assert not path.passes(A, 0.5)
    assert path.passes(B, 0.9)
    assert path.weight == pytest.approx(0.45)
    assert [beginning[-1].low for beginning in path.siblings] == [0.9]
